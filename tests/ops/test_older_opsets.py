"""Reductions, normalizations and softmax as older opsets define them: with axes as attributes and other defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trainers

from minbuild.ir import Node, TensorType
from minbuild.ops import registry
from minbuild.ops.core.definition import OpContext, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder, named

REGISTRY = registry()
RANDOM = np.random.default_rng(11)
X = RANDOM.uniform(0.5, 2, (2, 3, 4))
IMAGE = RANDOM.standard_normal((2, 4, 3, 3))
CHANNELS = RANDOM.uniform(0.5, 2, (4, 4))
ELEMENTS = RANDOM.uniform(0.5, 2, (4, 4, 3, 3))
EPSILON = float(np.float32(1e-5))


def flat_softmax(x: np.ndarray) -> np.ndarray:
    """Over everything from axis 1 on."""
    power = np.exp(x - x.max((1, 2), keepdims=True))
    return np.asarray(power / power.sum((1, 2), keepdims=True))


def standardised(x: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + EPSILON), mean, variance


def per_channel(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, 1, 1)


def trained_batch_norm() -> tuple[np.ndarray, ...]:
    """Before opset 14: the result, running statistics, and those of the batch."""
    scale, bias, mean, variance = CHANNELS
    normal, found, spread = standardised(IMAGE, (0, 2, 3))
    y = normal * per_channel(scale) + per_channel(bias)
    found, spread = found.ravel(), spread.ravel()
    return y, 0.75 * mean + 0.25 * found, 0.75 * variance + 0.25 * spread, found, spread


def grouped() -> np.ndarray:
    """Opset 18: scale and bias for each group."""
    normal = standardised(IMAGE.reshape(2, 2, -1), (2,))[0]
    y = normal * CHANNELS[0, :2].reshape(2, 1) + CHANNELS[1, :2].reshape(2, 1)
    return np.asarray(y.reshape(IMAGE.shape))


def layer() -> tuple[np.ndarray, ...]:
    normal, mean, variance = standardised(X, (2,))
    return normal * CHANNELS[0] + CHANNELS[1], mean, 1 / np.sqrt(variance + EPSILON)


HARD = (X.reshape(2, -1) == X.reshape(2, -1).max(1, keepdims=True)).reshape(X.shape)
SEQUENCE: tuple[tuple[str, int, tuple[np.ndarray, ...], Mapping[str, Any], Any], ...] = (
    ("ReduceSum", 11, (X,), {"axes": (0, -1), "keepdims": 0}, X.sum((0, 2))),
    ("ReduceSum", 7, (X,), {}, X.sum(keepdims=True)),
    ("ReduceMean", 13, (X,), {"axes": (1,)}, X.mean(1, keepdims=True)),
    ("ReduceMax", 12, (X,), {"axes": (-2,), "keepdims": 0}, X.max(1)),
    ("ReduceMin", 13, (X,), {"axes": (0, 1)}, X.min((0, 1), keepdims=True)),
    ("ReduceProd", 11, (X,), {"axes": (2,)}, X.prod(2, keepdims=True)),
    ("ReduceL1", 11, (X,), {"axes": (2,)}, np.abs(X).sum(2, keepdims=True)),
    ("ReduceL2", 13, (X,), {"axes": (1,), "keepdims": 0}, np.sqrt((X * X).sum(1))),
    ("ReduceSumSquare", 11, (X,), {"axes": (0,)}, (X * X).sum(0, keepdims=True)),
    ("ReduceLogSum", 13, (X,), {"axes": (0, 2), "keepdims": 0}, np.log(X.sum((0, 2)))),
    ("ReduceLogSumExp", 11, (X,), {"axes": (1, 2)}, np.log(np.exp(X).sum((1, 2), keepdims=True))),
    ("Softmax", 11, (X,), {}, flat_softmax(X)),
    ("LogSoftmax", 11, (X,), {"axis": 1}, np.log(flat_softmax(X))),
    ("Hardmax", 11, (X,), {}, HARD),
    ("LayerNormalization", 14, (X, CHANNELS[0], CHANNELS[1]), {"axis": -1}, layer()),
    ("GroupNormalization", 18, (IMAGE, *CHANNELS[:2, :2]), {"num_groups": 2}, grouped()),
    ("BatchNormalization", 9, (IMAGE, *CHANNELS), {"momentum": 0.75}, trained_batch_norm()),
    (
        "BatchNormalization",
        7,
        (IMAGE, *ELEMENTS),
        {"spatial": 0},
        (IMAGE - ELEMENTS[2]) / np.sqrt(ELEMENTS[3] + EPSILON) * ELEMENTS[0] + ELEMENTS[1],
    ),
)


@pytest.mark.parametrize(
    ("name", "version", "inputs", "attributes", "wanted"),
    SEQUENCE,
    ids=lambda v: v if type(v) in (str, int) else "",
)
def test_older_operators_compute_what_their_opset_says(name, version, inputs, attributes, wanted, tmp_path):
    answers = wanted if isinstance(wanted, tuple) else (wanted,)
    case = TestCase(name, inputs, attributes, outputs=len(answers))
    one = trainers.one_node(REGISTRY.ops[f":{name}"], case, np.float64)
    graph = replace(one.training, nodes=tuple(replace(n, version=version) for n in one.training.nodes))
    one = replace(one, artifacts=replace(one.artifacts, training=graph))
    plan = trainers.plan_of(one.artifacts, REGISTRY)
    library = trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path)
    found = trainers.run(library, plan, one)
    for i, answer in enumerate(answers):
        np.testing.assert_allclose(found[f"y{i}"], answer, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "version", "attributes"),
    [
        ("ReduceSum", 11, {"axes": (0, 2), "keepdims": 0}),
        ("ReduceMean", 11, {"axes": (1,), "keepdims": 0}),
        ("ReduceMax", 12, {"axes": (2,), "keepdims": 0}),
        ("ReduceProd", 11, {"axes": (2,), "keepdims": 0}),
        ("ReduceL2", 11, {"axes": (1,), "keepdims": 0}),
        ("ReduceLogSumExp", 11, {"axes": (1,), "keepdims": 0}),
        ("Softmax", 11, {"axis": 1}),
        ("LogSoftmax", 12, {"axis": 1}),
        ("MeanVarianceNormalization", 9, {"axes": (1, 2)}),
        ("LpNormalization", 1, {"axis": 1}),
    ],
)
def test_gradients_for_older_opsets_use_axes_as_attributes(name, version, attributes):
    """Their nodes are what opset 11 has: axes are attributes, softmax flattens."""
    tensor = TensorType(trainers.element_of(X), X.shape)
    ctx = OpContext(attributes, (tensor,), (None,), version)
    backward = GradientBuilder(ctx, ("x",), ("y",), ("dy",), (0,), "backward", 11)
    rule = REGISTRY.ops[f":{name}"].gradient
    assert rule is not None
    nodes: tuple[Node, ...] = named(backward, backward.write(rule), ("dx",))
    over_axes = [n for n in nodes if n.op_type.startswith("Reduce") or n.op_type in ("Squeeze", "Unsqueeze")]
    assert nodes and all(len(n.inputs) == 1 and n.attributes["axes"] for n in over_axes)
    assert not any(n.op_type.endswith("_13") for n in nodes)
