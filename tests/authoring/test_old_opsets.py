"""Models of old opsets, whose operators have what their gradients read under a later one."""

from __future__ import annotations

import numpy as np
import pytest
from authored import uniform
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from minbuild.training.api import CheckpointState, Module
from minbuild.training.artifacts import LossType, generate_artifacts

(WEIGHTS,) = uniform((2, 1, 2, 2))


def pooled(opset):
    """A convolution with a maximum pool behind it, as exporters of 2017 wrote it."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[2, 2]),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    shapes = (("x", [3, 1, 5, 5]), ("y", [3, 8]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes)
    graph = helper.make_graph(nodes, "old", [x], [y], [numpy_helper.from_array(WEIGHTS, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


def test_a_pool_of_opset_7_trains(tmp_path):
    model = pooled(7)
    x, target = uniform((3, 1, 5, 5), (3, 8))
    generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert model.opset_import[0].version == 7  # the caller's own stays as it is
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    (y,) = ReferenceEvaluator(pooled(8)).run(None, {"x": x})
    assert float(module(x, target)) == pytest.approx(((y - target) ** 2).mean(), rel=1e-5)
    gradient = state.parameters["w"].grad
    change = 1e-2 * gradient / np.linalg.norm(gradient)
    losses = []
    for sign in (1, -1):
        moved = pooled(8)
        moved.graph.initializer[0].CopyFrom(
            numpy_helper.from_array((WEIGHTS + sign * change).astype(np.float32), "w")
        )
        (y,) = ReferenceEvaluator(moved).run(None, {"x": x})
        losses.append(((y.astype(np.float64) - target) ** 2).mean())
    assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(np.linalg.norm(gradient), rel=1e-3)
