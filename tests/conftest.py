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


# Files whose tests ask for no compiler, at once or through the cache: they are marked `unit`, and held to it below.
UNIT = frozenset(
    f"test_{name}.py"
    for name in """
    cache checkpoint dims errors formulas function_gradients glossary interpreter local_functions memory
    older_batch_normalization
    onnxruntime_names operator_declarations ort_files parity passes sequence_nodes sequences symbol_unification
    """.split()  # noqa: SIM905
)
# In these files, and too slow for unit tests all the same.
SLOW = frozenset({"test_random_training_graphs_are_near_the_bound"})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`pytest -m unit` does not even import the other files, which takes longer than the tests."""
    others = collection_path.name.startswith("test_") and collection_path.name not in UNIT
    return True if others and collection_path.is_file() and config.option.markexpr == "unit" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in UNIT and getattr(item, "originalname", "") not in SLOW:
            item.add_marker("unit")


@pytest.fixture(autouse=True)
def _no_compiler_in_unit_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit test that asks for a library fails, also where the cache has it."""

    def refuse() -> None:
        pytest.fail(
            "a unit test asks for a compiled library: take its file out of UNIT in conftest.py", pytrace=False
        )

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
