"""ConcatTraining tells the sizes of its pieces when the trainer is built, free dimensions or not."""

from __future__ import annotations

import numpy as np
import pytest
import trainers

from minbuild.ir import Checkpoint, ElementType, Graph, Node, TensorType, TrainingArtifacts
from minbuild.ir.dims import symbol
from minbuild.ops import registry

REGISTRY = registry()


def joined_and_split(first, second, axis, outputs):
    """a, b -> ConcatTraining -> sizes -> SplitTraining(c) -> p, q"""
    nodes = (
        Node("ConcatTraining", "com.microsoft", 1, "join", ("a", "b"), ("c", "sizes"), {"axis": axis}),
        Node("SplitTraining", "com.microsoft", 1, "split", ("c", "sizes"), ("p", "q"), {"axis": axis}),
    )
    inputs = {"a": TensorType(ElementType.FLOAT, first), "b": TensorType(ElementType.FLOAT, second)}
    return TrainingArtifacts(
        Graph("t.onnx", nodes, inputs, {}, outputs, {}), None, None, Checkpoint((trainers.TRAINED,)), {}
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    contents = trainers.everything_of({"concat"}, REGISTRY)
    return trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("concat"))


@pytest.mark.parametrize("outputs", [("c", "p", "q"), ("c", "q")], ids=["all", "second"])
def test_sizes_along_a_free_dimension(outputs, library):
    n, m = symbol("n"), symbol("m")
    plan = trainers.plan_of(joined_and_split((n, 3), (m, 3), 0, outputs), REGISTRY)
    session = trainers.session_of(library, plan, {})
    for count, more in ((2, 5), (1, 1), (8, 3)):
        a, b = (np.random.default_rng(k).standard_normal((k, 3)).astype(np.float32) for k in (count, more))
        found = dict(zip(outputs, session.run(0, [a, b]), strict=True))
        wanted = {"c": np.concatenate([a, b]), "p": a, "q": b}
        for name in outputs:
            np.testing.assert_array_equal(found[name], wanted[name])


def test_sizes_that_are_numbers_reach_no_kernel(library):
    plan = trainers.plan_of(joined_and_split((2, 3), (2, 4), 1, ("q",)), REGISTRY)
    steps = plan.routines[0].steps
    assert len(steps) == 3 and not plan.constants  # two pieces in, one out
    a, b = np.ones((2, 3), np.float32), np.full((2, 4), 2, np.float32)
    np.testing.assert_array_equal(trainers.session_of(library, plan, {}).run(0, [a, b])[0], b)
