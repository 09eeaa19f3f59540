"""The written mutations of tests/slow/mutations still apply, and the tests that they name are there."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_written_mutation_applies() -> None:
    script = ROOT / "tests/slow/mutants.py"
    done = subprocess.run((sys.executable, script, "--check"), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
