"""What tests of readers share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from artifact_folders import FILES, GOLDEN


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private copy of a small set."""
    target = tmp_path / "set"
    target.mkdir()
    for name in FILES:
        shutil.copy(GOLDEN / "dense" / name, target / name)
    return target
