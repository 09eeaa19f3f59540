"""Gradients of pools and convolutions that ONNX Runtime 1.19.2 gets wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import trainers

from minbuild.errors import Unsupported
from minbuild.ir import Checkpoint, ElementType, Graph, Node, TensorType, TrainingArtifacts
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.ops.core.definition import OpContext
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.pooling.average_pool import average_pool, average_pool_grad

REGISTRY = registry()
FLOAT = ElementType.FLOAT


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    contents = trainers.everything_of({"average_pool"}, REGISTRY)
    return trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("average_pool"))


def artifacts(nodes, inputs, outputs) -> TrainingArtifacts:
    graph = Graph("t.onnx", tuple(nodes), inputs, {}, tuple(outputs), {})
    return TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {})


def pooled(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    assert average_pool.reference is not None
    return average_pool.reference(attributes, x.astype(np.float64))


def gradient_of(attributes: Mapping[str, Any], x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """The gradient along every single element of x: pooling is linear."""
    dx = np.zeros(x.shape)
    for place in np.ndindex(*x.shape):
        one = np.zeros(x.shape)
        one[place] = 1
        dx[place] = (pooled(attributes, one) * dy).sum()
    return dx


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": (2, 2), "strides": (2, 2)},
        {"kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": 1},
        {
            "kernel_shape": (3, 2),
            "strides": (2, 2),
            "pads": (1, 0, 1, 1),
            "count_include_pad": 1,
            "ceil_mode": 1,
        },
    ],
    ids=["dynamic batch", "ceil_mode", "count_include_pad"],
)
def test_average_pool_gradient(attributes, library):
    """With a dynamic batch ORT's kernel takes its shape from the file, where the batch is unknown; its windows that
    reach over the end with ceil_mode divide by the wrong number."""
    shape = (symbol("batch"), 2, 6, 5)
    small = pooled(attributes, np.zeros((1, 2, 6, 5))).shape
    nodes = (
        Node("AveragePool", "", 19, "pool", ("x",), ("y",), attributes),
        Node("AveragePoolGrad", "", 9, "grad", ("dy",), ("x_grad",), attributes),
    )
    inputs = {"x": TensorType(FLOAT, shape), "dy": TensorType(FLOAT, (symbol("batch"), *small[1:]))}
    plan = trainers.plan_of(artifacts(nodes, inputs, ("y", "x_grad")), REGISTRY)
    session = trainers.session_of(library, plan, {})
    random = np.random.default_rng(3)
    for batch in (3, 1):
        x = random.standard_normal((batch, *shape[1:])).astype(np.float32)
        dy = random.standard_normal((batch, *small[1:])).astype(np.float32)
        y, dx = session.run(0, [x, dy])
        assert trainers.disagreement(y, pooled(attributes, x), 8) == ""
        assert trainers.disagreement(dx, gradient_of(attributes, x, dy), 8) == ""


def two_pools(gradient: str) -> TrainingArtifacts:
    """Two AveragePools whose results have one shape though their inputs do not, and a gradient called `gradient`."""
    attributes = {"kernel_shape": (2,), "strides": (2,)}
    nodes = (
        Node("AveragePool", "", 19, "even", ("even",), ("y",), attributes),
        Node("AveragePool", "", 19, "odd", ("odd",), ("z",), attributes),
        Node("AveragePoolGrad", "", 9, "grad", ("dy",), (gradient,), attributes),
    )
    inputs = {n: TensorType(FLOAT, (1, 1, size)) for n, size in (("even", 4), ("odd", 5), ("dy", 2))}
    return artifacts(nodes, inputs, ("y", "z", gradient))


def test_average_pools_are_told_apart_by_name(library):
    """The node knows only the result's shape, which an input of four and one of five elements share."""
    dy = np.array([[[2, 4]]], np.float32)
    for name, wanted in (("even", [1, 1, 2, 2]), ("odd", [1, 1, 2, 2, 0])):
        built = two_pools(f"{name}_grad")
        plan = trainers.plan_of(built, REGISTRY)
        feeds = [np.zeros((1, 1, 4), np.float32), np.zeros((1, 1, 5), np.float32), dy]
        found = trainers.session_of(library, plan, {}).run(0, feeds)[2]
        np.testing.assert_array_equal(found.ravel(), wanted)


def test_a_gradient_of_either_of_two_average_pools_is_refused():
    with pytest.raises(Unsupported, match="several AveragePools fit"):
        trainers.plan_of(two_pools("somewhere"), REGISTRY)


def test_a_gradient_of_no_average_pool_is_refused():
    node = Node("AveragePoolGrad", "", 9, "grad", ("dy",), ("dx",), {"kernel_shape": (2,)})
    with pytest.raises(Unsupported, match="no AveragePool before it fits"):
        trainers.plan_of(artifacts((node,), {"dy": TensorType(FLOAT, (1, 1, 2))}, ("dx",)), REGISTRY)


def test_gradients_are_written_with_explicit_padding():
    """ORT's ConvGrad and AveragePoolGrad ignore auto_pad: the rules write the padding it stands for."""
    x, w = TensorType(FLOAT, (1, 2, 5, 4)), TensorType(FLOAT, (3, 2, 3, 2))
    attributes = {"auto_pad": "SAME_UPPER", "strides": (2, 2)}
    for name, inputs in (("Conv", (x, w)), ("AveragePool", (x,))):
        given = {**attributes, "kernel_shape": (3, 2)}
        ctx = OpContext(given, inputs, (None,) * len(inputs), 11)
        names = ("x", "w")[: len(inputs)]
        rule = GradientBuilder(ctx, names, ("y",), ("dy",), range(len(inputs)), "backward")
        gradient = REGISTRY.ops[f":{name}"].gradient
        assert gradient is not None
        gradient(rule)
        written = rule.nodes[-1].attributes
        assert "auto_pad" not in written and written["pads"] == (1, 0, 1, 0)


def test_reference_trainers_know_the_shape_as_well():
    """The interpreter of artifacts is told the shape that no input tells."""
    assert average_pool_grad.reference is not None
    attributes = {"kernel_shape": (2,), "strides": (2,)}
    found = average_pool_grad.reference(attributes, np.array([[[2.0, 4.0]]]), np.array([1, 1, 5]))
    np.testing.assert_array_equal(found, [[[1, 1, 2, 2, 0]]])
