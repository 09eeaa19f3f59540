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
os.environ.setdefault("MINBUILD_CHECK_PASSES", "1")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`pytest -m unit` does not even import files without such tests, which takes longer than the tests."""
    if config.option.markexpr == "unit" and collection_path.name.startswith("test_"):
        return True if "pytest.mark.unit" not in collection_path.read_text("utf-8") else None
    return None


@pytest.fixture(autouse=True)
def _no_compiler_in_unit_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit test that asks for a library fails, also where the cache has it."""

    def refuse() -> None:
        pytest.fail("a unit test asks for a compiled library: take the mark `unit` from it", pytrace=False)

    if request.node.get_closest_marker("unit"):
        monkeypatch.setattr("minbuild.toolchain.user_cache", refuse)


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
