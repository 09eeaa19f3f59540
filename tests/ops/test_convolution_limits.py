"""The longest windows and strides of a convolution: the largest that positions have room for are computed, the next are
refused."""

from __future__ import annotations

import numpy as np
import pytest
import trainers

from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase
from minbuild.training.library import TrainerError

REGISTRY = registry()
MOST = 1 << 12  # taps along an axis, and steps of a stride
MOST_POSITIONS = 1 << 30  # that outputs reach, in elements of the input


def windows(taps: int) -> TestCase:
    random = np.random.default_rng(taps)
    return TestCase("", (random.standard_normal((1, 1, MOST + 4)), random.standard_normal((1, 1, taps))))


def strides(outputs: int) -> TestCase:
    """One element, and as many outputs as it takes, all but the first of which see nothing."""
    given = np.full((1, 1, 1), 3.0), np.full((1, 1, 1), 2.0)
    return TestCase("", given, {"strides": (MOST,), "pads": (0, MOST * (outputs - 1))})


CASES = {
    "taps": windows(MOST),
    "more taps": windows(MOST + 1),
    "reach": strides(MOST_POSITIONS // MOST - 1),
    "more reach": strides(MOST_POSITIONS // MOST),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """The library for all of them, and their nodes and plans."""
    nodes = {name: trainers.one_node(REGISTRY.ops[":Conv"], case) for name, case in CASES.items()}
    plans = {name: trainers.plan_of(one.artifacts, REGISTRY) for name, one in nodes.items()}
    contents = trainers.contents_of(plans.values())
    return trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("limits")), nodes, plans


def test_the_longest_window_is_computed(made) -> None:  # type: ignore[no-untyped-def]
    library, nodes, plans = made
    x, w = (each.astype(np.float32).ravel() for each in CASES["taps"].inputs if each is not None)
    found = trainers.run(library, plans["taps"], nodes["taps"])["y0"]
    np.testing.assert_allclose(found.ravel(), np.correlate(x.astype(np.float64), w), rtol=1e-4, atol=1e-3)


def test_the_farthest_output_is_computed(made) -> None:  # type: ignore[no-untyped-def]
    library, nodes, plans = made
    found = trainers.run(library, plans["reach"], nodes["reach"])["y0"].ravel()
    assert found[0] == 6 and len(found) == MOST_POSITIONS // MOST - 1 and not found[1:].any()


@pytest.mark.parametrize("name", ["more taps", "more reach"])
def test_the_next_are_refused(made, name: str) -> None:  # type: ignore[no-untyped-def]
    library, nodes, plans = made
    with pytest.raises(TrainerError):
        trainers.run(library, plans[name], nodes[name])
