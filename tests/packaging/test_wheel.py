"""The wheel: its metadata, what it contains, and its command in a fresh environment, as `uvx --from` and `pipx run
--spec` make one. Needs the package index, whose absence is a skip that says so."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from places import ROOT

pytestmark = pytest.mark.wheel
CONSTRAINTS = ROOT / "constraints.txt"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(ROOT))
    (built,) = out.glob("*.whl")
    return built


def test_the_metadata_says_what_an_index_asks_for(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        found = email.message_from_bytes(file.read(metadata))
    assert found["License-Expression"] == "MIT" and found["License-File"] == "LICENSE"
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert found["Keywords"] and len(found.get_all("Classifier")) > 8
    assert not [c for c in found.get_all("Classifier") if c.startswith("License ::")], "PEP 639 forbids both"
    assert found["Description-Content-Type"] == "text/markdown"
    assert {"minbuild/py.typed", "minbuild/_assets/kernels/include/minbuild/trainer.h"} <= set(names)
    assert not [n for n in names if n.startswith(("tests/", "docs/"))]


def test_the_command_runs_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    _run(str(programs / "python"), "-m", "pip", "install", "--quiet", "-c", str(CONSTRAINTS), str(wheel))
    _reduces([str(programs / "minbuild")], tmp_path)


@pytest.mark.parametrize("runner", ["uvx", "pipx"])
def test_the_wheel_runs_without_being_installed(runner: str, wheel: Path, tmp_path: Path) -> None:
    program = shutil.which(runner)
    if program is None:
        pytest.skip(f"{runner} is not installed")
    if runner == "uvx":
        command = [program, "--python", sys.executable, "--from", str(wheel), "minbuild"]
    else:
        command = [program, "run", "--python", sys.executable, "--spec", str(wheel), "minbuild"]
    _reduces(command, tmp_path)


def _reduces(command: list[str], folder: Path) -> None:
    version = re.search(r'__version__ = "(.*)"', (ROOT / "minbuild/__init__.py").read_text("utf-8"))
    assert version is not None
    assert _run(*command, "--version", cwd=folder).split() == ["minbuild", version[1]]
    _run(*command, "reduce", str(ROOT / "artifacts"), "--out", "dist", "--no-analysis", cwd=folder)
    assert (folder / "dist" / "include" / "minbuild" / "trainer.h").is_file()


def _run(*command: str, cwd: Path | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode and "No matching distribution" in done.stderr + done.stdout:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
