"""ONNX Runtime's own tests of its training API, run against minbuild.

python tests/slow/ort_api_tests.py [--source FOLDER] [--python PYTHON] [--write] [-- PYTEST ARGUMENTS]

The tests come from Debian's source package onnxruntime 1.21.0 (trixie), with `apt-get source`; nothing of them is kept.
`onnxruntime.training` is `minbuild.training`, `cuda` is read as `cpu`, and models are exported by torch's older
exporter, which the tests were written for. Their judge is the inference part of onnxruntime-training-cpu 1.19.2, whose
kernels also run training models. `--write` puts the result into reports/baseline/ort_tests.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "reports" / "baseline" / "ort_tests.md"
PACKAGE = "onnxruntime"
FILES = ("orttraining_test_ort_apis_onnxblock", "orttraining_test_ort_apis_py_bindings")
DATA = "onnxruntime/test/testdata/custom_op_library/custom_op_test.onnx"
NEEDED = (
    "onnxruntime-training-cpu==1.19.2", "torch==2.13.0", "onnx==1.16.2", "numpy<2", "pytest>=8", "packaging",
)  # fmt: skip
CONFTEST = """
import functools, importlib, sys
import onnxruntime
import torch
import minbuild.training

def alias(name):
    module = importlib.import_module("minbuild" + name.removeprefix("onnxruntime"))
    sys.modules[name] = module
    return module

for part in ("api", "artifacts", "onnxblock", "onnxblock.blocks", "onnxblock.loss", "onnxblock.optim"):
    alias(f"onnxruntime.training.{part}")
onnxruntime.training = alias("onnxruntime.training")
torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)
"""


def download(folder: Path) -> Path:
    """The tar file of the source package, by apt, with lists of its own. Nothing of the system changes."""
    mirror = next(iter(mirrors()), "http://deb.debian.org/debian")
    sources = folder / "trixie.sources"
    sources.write_text(
        f"Types: deb-src\nURIs: {mirror}\nSuites: trixie\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    lists = folder / "lists"
    lists.mkdir()
    options = [
        f"-oDir::Etc::sourcelist={sources}", "-oDir::Etc::sourceparts=-", f"-oDir::State::lists={lists}",
        "-oAPT::Sandbox::User=root",
    ]  # fmt: skip
    subprocess.run(["apt-get", "update", "-q", *options], check=True, stdout=subprocess.DEVNULL)
    get = ["apt-get", "source", "-q", "--download-only", "--tar-only", *options, PACKAGE]
    subprocess.run(get, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return next(folder.glob(f"{PACKAGE}_*.orig.tar.*"))


def mirrors() -> list[str]:
    """Where apt gets Debian from on this machine."""
    found = []
    for path in (*Path("/etc/apt").glob("sources.list"), *Path("/etc/apt/sources.list.d").glob("*")):
        for line in path.read_text(errors="replace").splitlines():
            words = line.split()
            urls = words[1:] if words[:1] in (["URIs:"], ["deb"]) else []
            found += [u for u in urls if u.startswith("http") and u.rstrip("/").endswith("/debian")]
    return found


def unpack(archive: Path, folder: Path) -> None:
    """The two files of tests, with cpu in place of cuda, and the model of a custom operator."""
    wanted = [f"*/{name}.py" for name in FILES] + [f"*/{DATA}"]
    command = ["tar", "xf", str(archive), "-C", str(folder), "--wildcards", *wanted]
    subprocess.run(command, check=False, stderr=subprocess.DEVNULL)  # Debian may leave the model out
    for name in FILES:
        text = next(folder.rglob(f"{name}.py")).read_text()
        (folder / f"test_{name}.py").write_text(text.replace("cuda", "cpu").replace("Cuda", "Cpu"))
        (folder / f"{name}.py").write_text(f"from test_{name} import _get_models\n")
    for path in folder.rglob("custom_op_test.onnx"):
        place = folder / "testdata" / "custom_op_library"
        place.mkdir(parents=True)
        path.rename(place / path.name)
    (folder / "conftest.py").write_text(CONFTEST)


def environment(folder: Path) -> Path:
    """A Python with ONNX Runtime, PyTorch and what minbuild needs."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", *NEEDED, str(ROOT)], check=True)
    return python


def run(python: Path, folder: Path, arguments: list[str]) -> ElementTree.Element:
    """All tests in a process of their own; the result as JUnit's XML."""
    result = folder / "result.xml"
    paths = os.pathsep.join((str(ROOT), str(folder)))
    command = [python, "-m", "pytest", "-q", f"--junitxml={result}", "-p", "no:cacheprovider", "-W", "ignore"]
    command += [*arguments, *(f"test_{name}.py" for name in FILES)]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, check=False)
    return ElementTree.parse(result).getroot()


def table(root: ElementTree.Element) -> str:
    """Counts of each file, and what does not pass with the first line of its reason."""
    rows, failed = [], []
    for name in FILES:
        cases = [c for c in root.iter("testcase") if c.get("classname", "").endswith(f"test_{name}")]
        bad = [c for c in cases if any(c.find(kind) is not None for kind in ("failure", "error", "skipped"))]
        rows.append(f"| `{name}.py` | {len(cases) - len(bad)} | {len(cases)} |")
        failed += [f"- `{c.get('name')}`: {_reason(c)}" for c in bad]
    lines = [
        "<!-- Written by `python tests/slow/ort_api_tests.py --write`; do not edit. -->", "",
        "# ONNX Runtime's own tests of its training API", "",
        "Run unmodified, but that `cuda` is read as `cpu`, with `minbuild.training` in the place of",
        "`onnxruntime.training`. `reports/api.md` has the reason of each that does not pass.", "",
        "| file | pass | tests |", "|---|--:|--:|", *rows, "", *failed,
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def _reason(case: ElementTree.Element) -> str:
    found = next(e for kind in ("failure", "error", "skipped") if (e := case.find(kind)) is not None)
    return (found.get("message") or "").strip().splitlines()[0][:160]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="tar file of the source package, instead of apt")
    parser.add_argument("--python", type=Path, help="Python with the packages, instead of a new environment")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ort-tests-") as temporary:
        folder = Path(temporary)
        tests = folder / "tests"
        tests.mkdir()
        unpack((given.source or download(folder)).resolve(), tests)
        python = given.python.absolute() if given.python else environment(folder / "venv")
        text = table(run(python, tests, given.pytest))
    print(text)
    if given.write:
        TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
