"""Faults of the cache and the package writer: every call that reaches files fails in turn with EIO, ENOSPC and EACCES,
writes stop half way, and the process dies before each call; the old state or the new one survives, whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import CC, run

FAULTS = Path(__file__).parents[1] / "faults"
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="calls are intercepted as Linux's loader allows"
)


def test_the_old_or_the_new_state_survives_every_fault(tmp_path: Path) -> None:
    run(*CC, "-shared", "-fPIC", "-O1", FAULTS / "preload.c", "-o", tmp_path / "preload.so", cwd=tmp_path)
    environment = os.environ | {
        "LD_PRELOAD": str(tmp_path / "preload.so"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join([str(FAULTS.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        [sys.executable, str(FAULTS / "python_side.py"), str(tmp_path / "work")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )
    said = done.stdout
    assert done.returncode == 0 and said.splitlines()[-1] == "0 experiments went wrong", said + done.stderr
    # The interception works: there are calls to fail.
    assert all(int(n) > 5 for n in re.findall(r"(\d+) calls", said)) and said.count(" calls") == 6
