"""Fixtures that tests of the runtime share."""

from __future__ import annotations

import pytest
from case_sets import GOLDEN, load, trainer
from plan_bench import Bench

from minbuild.training.library import Session


@pytest.fixture
def session() -> Session:
    """A session of the residual network, from its recorded checkpoint."""
    folder = GOLDEN / "residual"
    return trainer(folder).session(load(folder).checkpoint)


@pytest.fixture(params=["dense", "residual"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """The plans of two networks, to rewrite."""
    return Bench(request.param)
