"""MaxPoolGrad has no shape of its own: it is tested behind the MaxPool that made its indices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trainers

from minbuild.errors import Unsupported
from minbuild.ir import Checkpoint, ElementType, Graph, Node, TensorType, TrainingArtifacts
from minbuild.ops import registry
from minbuild.ops.pooling.max_pool import VARIANTS
from minbuild.ops.pooling.max_pool import max_pool as op

REGISTRY = registry()


def artifacts(x, dy, attributes, outputs=("dx",)):
    """x -> MaxPool -> indices -> MaxPoolGrad(dy) -> dx"""
    nodes = (
        Node("MaxPool", "", 12, "pool", ("x",), ("y", "indices"), attributes),
        Node("MaxPoolGrad", "", 9, "grad", ("dy", "indices"), ("dx",), attributes),
    )
    inputs = {n: TensorType(trainers.element_of(a), a.shape) for n, a in (("x", x), ("dy", dy))}
    return TrainingArtifacts(
        Graph("t.onnx", nodes, inputs, {}, outputs, {}), None, None, Checkpoint((trainers.TRAINED,)), {}
    )


@pytest.fixture(scope="module", params=[False, True], ids=["fastest", "smallest"])
def library(request, tmp_path_factory):
    contents = replace(trainers.everything_of({"max_pool"}, REGISTRY), one_variant=request.param)
    return trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("max_pool"))


@pytest.mark.parametrize(
    ("size", "attributes", "long"),
    [
        ((8, 64), {"strides": (2, 2)}, True),
        ((8, 33), {}, True),
        ((64, 32), {}, False),  # 31 outputs of a line
        ((8, 28), {"strides": (2, 2)}, False),
        ((8, 120), {"strides": (2, 3)}, False),
        ((8, 120), {"strides": (3, 2)}, True),
    ],
)
def test_long_lines_are_pooled_by_vectors(size, attributes, long):
    attributes = {"kernel_shape": (2, 2), **attributes}
    x = np.zeros((1, 2, *size), np.float32)
    _, indices = op.reference(attributes, x)
    plan = trainers.plan_of(artifacts(x, np.zeros(indices.shape, np.float32), attributes), REGISTRY)
    assert ("max_pool.lines" in plan.features) == long


@pytest.mark.parametrize("keep_indices", [False, True], ids=["narrow", "ONNX"])
def test_gradient_reaches_the_maxima(keep_indices, library):
    random = np.random.default_rng(7)
    for shape, attributes in VARIANTS:
        x = random.standard_normal(shape).round(1).astype(np.float32)
        _, indices = op.reference(attributes, x)
        dy = random.standard_normal(indices.shape).astype(np.float32)
        plan = trainers.plan_of(
            artifacts(x, dy, attributes, ("dx", "indices") if keep_indices else ("dx",)), REGISTRY
        )
        index = "int64_t" if keep_indices else "uint8_t"
        assert {k.types for k in plan.kernels} == {("float", index)}
        found = trainers.session_of(library, plan, {}).run(0, [x, dy])
        wanted = np.zeros(x.size)
        np.add.at(wanted, indices.ravel(), dy.ravel())
        assert trainers.disagreement(found[0], wanted.reshape(shape), 8) == "", (shape, attributes)
        if keep_indices:
            np.testing.assert_array_equal(found[1], indices)


def test_windows_above_256_keep_wide_indices():
    x = np.zeros((1, 1, 17, 17), np.float32)
    plan = trainers.plan_of(artifacts(x, x[:, :, :1, :1], {"kernel_shape": (17, 17)}), REGISTRY)
    assert {k.types for k in plan.kernels} == {("float", "int64_t")}


def test_indices_from_elsewhere_are_refused():
    attributes = {"kernel_shape": (2, 2)}
    node = Node("MaxPoolGrad", "", 9, "grad", ("dy", "indices"), ("dx",), attributes)
    inputs = {
        "dy": TensorType(ElementType.FLOAT, (1, 1, 2, 2)),
        "indices": TensorType(ElementType.INT64, (1, 1, 2, 2)),
    }
    graph = Graph("t.onnx", (node,), inputs, {}, ("dx",), {})
    with pytest.raises(Unsupported, match="not the output of a MaxPool"):
        trainers.plan_of(TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {}), REGISTRY)
