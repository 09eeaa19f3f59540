"""The README's examples run as they stand, on the package that its command makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from minbuild.toolchain import build_program, find_toolchain, host_target

STEPS = 20


def block(language: str) -> str:
    """The one code block of that language."""
    found = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert len(found) == 1
    return found[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with dist/ in it."""
    folder = tmp_path_factory.mktemp("readme")
    command = "from minbuild.cli.main import main; main()"
    subprocess.run(
        (sys.executable, "-c", command, "reduce", str(ROOT / "artifacts"), "--out", str(folder / "dist")),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    return folder


def test_it_fits_two_screens() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_its_commands_are_those_of_ci() -> None:
    """CI runs them in a clean clone, so they are known to work as they stand."""
    first, second = block("sh").splitlines()
    ci = (ROOT / ".ci/run").read_text("utf-8")
    assert (
        first.endswith("pip install -c constraints.txt .") and "pip install --quiet -c constraints.txt" in ci
    )
    assert second == "minbuild reduce artifacts/ --out dist/" and "minbuild reduce artifacts/ --out" in ci
    for command in ("pytest -n auto", 'pip install -c constraints.txt -e ".[test]"'):
        assert command in (ROOT / "README.md").read_text("utf-8")
    assert "pytest -n auto" in ci


def test_the_python_example_trains(place: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-c", block("python")),
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(losses) == STEPS
    assert losses[-1] < 0.8 * losses[0]
    assert (place / "trained").is_file()


def test_the_c_example_trains(place: Path) -> None:
    head, body = block("c").split("\n\n", 1)
    program = (
        f"{head}\n#include <stdio.h>\nstatic float images[8 * 16 * 16];\nstatic int64_t labels[8];\n"
        "int main(void) {\n  for (int i = 0; i < 8; ++i) labels[i] = i;\n"
        "  for (int i = 0; i < 8 * 256; ++i) images[i] = (float)((i * 37) % 101) / 101.0f - 0.5f;\n"
        + body.replace("mb_destroy(session);", _CHECK)
        + "}\n"
    )
    header = (place / "dist/include/minbuild/trainer.h").read_bytes()
    target = host_target()
    built = build_program(
        {"main.c": program.encode(), "include/minbuild/trainer.h": header},
        (place / f"dist/lib/{target.name}/libminbuild.a").read_bytes(),
        target,
        find_toolchain(),
    )
    binary = place / "example"
    binary.write_bytes(built)
    binary.chmod(0o755)
    done = subprocess.run((str(binary),), cwd=place, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (STEPS, ""), done.stderr


# The steps that the session has counted become the exit code.
_CHECK = "int steps = (int)mb_step_count(session);\nmb_destroy(session);\nreturn steps;\n"
