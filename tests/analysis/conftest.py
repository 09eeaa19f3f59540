"""What tests of sizes share."""

from __future__ import annotations

import pytest
from attributed_library import TARGETS, Library


@pytest.fixture(scope="module", params=TARGETS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(request.param, tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def x86(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(TARGETS[0], tmp_path_factory.mktemp("library"))
