"""Quantisation-aware training: gradients flow through pairs of QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import numpy as np
import pytest
from authored import stepped
from onnx import TensorProto, helper, numpy_helper

from minbuild.frontend.artifacts import load_artifacts
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.api import CheckpointState, Module
from minbuild.training.artifacts import LossType, generate_artifacts

RANDOM = np.random.default_rng(5)
W = RANDOM.standard_normal((4, 3)).astype(np.float32)
X, T = RANDOM.standard_normal((5, 4)).astype(np.float32), RANDOM.standard_normal((5, 3)).astype(np.float32)
SCALE, POINT = np.float32(0.01), 3  # numbers from -1.31 to 1.24: some weights are cut off


def model(scale, point, **attributes):
    """y = x q(w), as torch and ONNX Runtime's quantizer write it."""
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"], name="quantise", **attributes),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="back", **attributes),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(a, n) for n, a in (("w", W), ("s", scale), ("z", point))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_a_quantised_weight_trains_straight_through(kind, tmp_path):
    generate_artifacts(
        model(np.asarray(SCALE), np.asarray(POINT, kind)), loss=LossType.MSELoss, artifact_directory=tmp_path
    )
    (parameter,) = load_artifacts(tmp_path).checkpoint.parameters
    assert (parameter.name, parameter.trainable) == ("w", True)
    limits, scale = np.iinfo(kind), float(SCALE)
    whole = np.rint(W / SCALE).astype(np.float64) + POINT
    inside = (whole >= limits.min) & (whole <= limits.max)
    assert inside.any() and not inside.all()
    quantised = (whole.clip(limits.min, limits.max) - POINT) * scale
    error = X.astype(np.float64) @ quantised - T
    wanted = np.where(inside, X.T.astype(np.float64) @ (2 * error / error.size), 0)
    reference = ReferenceTrainer(load_artifacts(tmp_path))
    assert stepped(reference, X, T) == pytest.approx((error**2).mean(), rel=1e-6)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    assert float(module(X, T)) == pytest.approx((error**2).mean(), rel=1e-6)
    np.testing.assert_allclose(state.parameters["w"].grad, wanted, rtol=1e-5, atol=1e-6)


def test_what_no_gradient_flows_through_is_named(tmp_path):
    scales = np.full(3, SCALE)
    with pytest.warns(UserWarning, match="node 'quantise' .QuantizeLinear. has no single constant scale"):
        with pytest.raises(RuntimeError, match="depends on none of the parameters"):
            generate_artifacts(
                model(scales, np.zeros(3, np.int8), axis=1),
                loss=LossType.MSELoss,
                artifact_directory=tmp_path,
            )
        generate_artifacts(  # beside another parameter it is a note
            _with_bias(model(scales, np.zeros(3, np.int8), axis=1)),
            requires_grad=["b"],
            loss=LossType.MSELoss,
            artifact_directory=tmp_path,
        )


def _with_bias(proto):
    proto.graph.node[2].output[0] = "h"
    proto.graph.node.append(helper.make_node("Add", ["h", "b"], ["y"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "b"))
    return proto
