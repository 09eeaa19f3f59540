"""Fixtures that several test files use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import case_sets
import pytest

from minbuild.toolchain import host_target

os.environ.setdefault(
    "MINBUILD_NO_ANALYSIS", "1"
)  # what a waterfall takes is tested once, in test_waterfall.py


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """package(name) -> the folder of a package for golden set `name`: library, plan and checkpoint only."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            source, folder = case_sets.GOLDEN / name, tmp_path_factory.mktemp(name)
            built = case_sets.trainer(source)
            library = folder / "lib" / str(host_target()) / "libminbuild.so"
            library.parent.mkdir(parents=True)
            shutil.copy(built.path, library)
            (folder / "model").mkdir()
            (folder / "model" / "trainer.plan").write_bytes(built.data)
            shutil.copy(source / "checkpoint", folder / "model")
            made[name] = folder
        return made[name]

    return make
