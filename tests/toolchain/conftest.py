"""What tests of the toolchain share."""

from __future__ import annotations

from pathlib import Path

import pytest
from toolchain_sources import (
    HOST,
    SOURCES,
)

from minbuild.toolchain import (
    BuildOutput,
    build_library,
    find_toolchain,
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, so that nothing comes from an earlier run."""
    monkeypatch.setenv("MINBUILD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def zig_built(tmp_path_factory: pytest.TempPathFactory) -> BuildOutput:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINBUILD_CACHE", str(tmp_path_factory.mktemp("cache")))
        return build_library(SOURCES, HOST, find_toolchain())
