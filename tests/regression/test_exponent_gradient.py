"""ONNX Runtime gives the exponent of Pow no gradient at all, and the base infinity times zero where both are zero."""

from __future__ import annotations

import numpy as np
import pytest
import trainers

from minbuild.ir import Checkpoint, ElementType, Graph, Node, TensorType, TrainingArtifacts
from minbuild.ops import registry
from minbuild.ops.core.definition import OpContext
from minbuild.ops.core.graph_builder import GradientBuilder, named

REGISTRY = registry()


@pytest.fixture(scope="module")
def plan_and_library(tmp_path_factory):
    kind = TensorType(ElementType.DOUBLE, (4,))
    ctx = OpContext({}, (kind, kind), (None, None), 15)
    backward = GradientBuilder(ctx, ("x", "n"), ("y",), ("dy",), {0, 1}, "backward")
    gradient = REGISTRY.ops[":Pow"].gradient
    assert gradient
    nodes = named(backward, backward.write(gradient), ("dx", "dn"))
    forward = Node("Pow", "", 15, "forward", ("x", "n"), ("y",), {})
    inputs = dict.fromkeys(("x", "n", "dy"), kind)
    graph = Graph("training_model.onnx", (forward, *nodes), inputs, {}, ("dx", "dn"), {})
    plan = trainers.plan_of(
        TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {}), REGISTRY
    )
    contents = trainers.contents_of([plan])
    return plan, trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("pow"))


def test_both_gradients_of_a_power(plan_and_library):
    plan, library = plan_and_library
    x, n, dy = np.array([2.0, 0.0, 0.0, 3.0]), np.array([3.0, 0.0, 2.0, -1.0]), np.full(4, 0.5)
    dx, dn = trainers.session_of(library, plan, {}).run(0, [x, n, dy])
    np.testing.assert_allclose(dx, 0.5 * np.array([12.0, 0.0, 0.0, -1 / 9]), rtol=1e-14)
    np.testing.assert_allclose(dn, 0.5 * np.array([8 * np.log(2), 0.0, 0.0, np.log(3) / 3]), rtol=1e-14)
