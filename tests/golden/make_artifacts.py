"""Makes `artifacts/` and the golden sets with ONNX Runtime's own tools, in an environment of their own.

python tests/golden/make_artifacts.py                    everything, in a temporary environment
python tests/golden/make_artifacts.py --env DIR dense    one set, in the environment DIR (made if missing)
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = ("onnxruntime-training-cpu==1.19.2", "onnx==1.16.2", "numpy<2", "setuptools", "ml_dtypes")


def prepare(folder: Path, python: str) -> Path:
    """The interpreter of the environment in `folder`, which is made if it is not there."""
    inside = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not inside.exists():
        if shutil.which(python) is None:
            raise SystemExit(
                f"{python}: not found. ONNX Runtime's training package needs 3.11; use --python."
            )
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(inside), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return inside


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--python", default="python3.11", help="a Python 3.11 interpreter")
    parser.add_argument("--env", type=Path, help="keep the environment here")
    parser.add_argument("--golden", type=Path, default=HERE, help="where the golden sets go")
    shipped = HERE.parents[1] / "artifacts"
    parser.add_argument("--artifacts", type=Path, default=shipped, help="where artifacts/ is")
    parser.add_argument("names", nargs="*", help="sets to make; all if none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        python = prepare(options.env or Path(scratch) / "env", options.python)
        script = [str(python), str(HERE / "record.py")]
        subprocess.run([*script, str(options.golden), str(options.artifacts), *options.names], check=True)


if __name__ == "__main__":
    main()
