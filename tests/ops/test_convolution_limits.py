"""The longest windows and strides of a convolution: the largest that positions have room for are computed, the next are
refused; and so are shapes that do not fit each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trainers

from minbuild.ir import Plan
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


GROUPS = TestCase("", (np.ones((1, 4, 6)), np.ones((4, 2, 3))), {"group": 2})
CASES = {
    "groups": GROUPS,
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


def tampered(plan: Plan, **shapes: tuple[int, ...]) -> Plan:
    """The plan with other shapes of the convolution's output and inputs."""
    (step,), tensors = plan.routines[0].steps, list(plan.tensors)
    for index, name in zip(step.args, ("y", "x", "w"), strict=False):
        tensors[index] = replace(tensors[index], shape=shapes.get(name, tensors[index].shape))
    return replace(plan, tensors=tuple(tensors))


def test_shapes_that_fit_are_computed(made) -> None:  # type: ignore[no-untyped-def]
    library, nodes, plans = made
    assert np.array_equal(
        trainers.run(library, plans["groups"], nodes["groups"])["y0"], np.full((1, 4, 4), 6)
    )


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": (1, 3, 6)},  # channels
        {"w": (3, 2, 3), "y": (1, 3, 4)},  # filters that are no multiple of the groups
        {"w": (4, 1, 3)},
        {"y": (1, 3, 4)},
        {"w": (2, 2, 3)},
        {"w": (2, 2)},
    ],
)
def test_shapes_that_do_not_fit_are_refused(made, shapes: dict[str, tuple[int, ...]]) -> None:  # type: ignore[no-untyped-def]
    library, _, plans = made
    fed = [np.ones(shapes.get(n, shape), np.float32) for n, shape in (("x", (1, 4, 6)), ("w", (4, 2, 3)))]
    with pytest.raises(TrainerError):
        trainers.session_of(library, tampered(plans["groups"], **shapes), {}).run(0, fed)
