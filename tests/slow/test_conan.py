"""`--integration conan` with the real tool: the recipe is built, and its test trains. In an environment with
`pip install ".[test]" conan`, CMake and a compiler:

    pytest tests/slow/test_conan.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import FREE, call

CONAN = shutil.which("conan", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.skipif(CONAN is None, reason="conan is not installed")
@pytest.mark.parametrize("options", [(), ("--flavor", "compiled")])
def test_the_recipe_is_built_and_its_test_trains(options: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "dist"
    said = call("reduce", FREE, "--out", out, "--no-analysis", "--integration", "conan", *options)
    assert said.returncode == 0, said.stderr
    environment = {**os.environ, "CONAN_HOME": str(tmp_path / "home")}

    def conan(*arguments: object) -> str:
        command = [str(CONAN), *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    conan("profile", "detect")
    losses = []
    for shared in (False, True):
        printed = conan(
            "create", out / "integrations/conan", "-o", f"&:shared={shared}", "-s", "build_type=Release"
        )
        losses.append([line for line in printed.splitlines() if line.startswith("step")])
    assert losses[0] == losses[1] and losses[0]
