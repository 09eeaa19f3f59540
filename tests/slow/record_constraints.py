"""The versions that CI installs: constraints.txt, from a fresh environment.

    python tests/slow/record_constraints.py

Installs the project with its extras `test`, `docs`, `examples`, `notebooks` and `asm` from the package index, and
writes what was installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAD = """# Versions of every package that CI installs: pip install -c constraints.txt .
# Recorded by tests/slow/record_constraints.py with Python {version}.
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run(
            (python, "-m", "pip", "install", "--quiet", f"{ROOT}[test,docs,examples,notebooks,asm]"),
            check=True,
        )
        frozen = subprocess.run(
            (python, "-m", "pip", "freeze", "--exclude", "minbuild"),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    head = HEAD.format(version=".".join(map(str, sys.version_info[:2])))
    (ROOT / "constraints.txt").write_text(head + frozen, "utf-8")


if __name__ == "__main__":
    main()
