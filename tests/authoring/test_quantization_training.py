"""Quantisation-aware training: gradients flow through pairs of QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from authored import stepped
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from minbuild.frontend.artifacts import load_artifacts
from minbuild.planning.inference_export import export_model
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


FOUR_BIT_SCALES = np.float32([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("kind", "points"),
    [(TensorProto.INT4, [-3, 2, 5]), (TensorProto.UINT4, [3, 8, 15]), (TensorProto.INT4, None)],
    ids=["signed", "unsigned", "without-points"],
)
def test_a_weight_in_four_bits_trains_straight_through(kind, points, tmp_path):
    quantised = model(FOUR_BIT_SCALES, np.zeros(3, np.int8), axis=1)
    quantised.opset_import[0].version, quantised.ir_version = 21, 10
    graph = quantised.graph
    del graph.initializer[-1]
    if points:
        graph.initializer.append(helper.make_tensor("z", kind, [3], points))
    else:
        graph.node[0].attribute.append(helper.make_attribute("output_dtype", int(kind)))
        for node in graph.node[:2]:
            del node.input[2]
    generate_artifacts(quantised, loss=LossType.MSELoss, artifact_directory=tmp_path)
    (parameter,) = load_artifacts(tmp_path).checkpoint.parameters
    assert (parameter.name, parameter.trainable) == ("w", True)
    low, high = (-8, 7) if kind == TensorProto.INT4 else (0, 15)
    point = np.array(points or [0, 0, 0])
    whole = np.rint(W / FOUR_BIT_SCALES).astype(np.float64) + point
    inside = (whole >= low) & (whole <= high)
    assert inside.any() and not inside.all()
    error = X.astype(np.float64) @ ((whole.clip(low, high) - point) * FOUR_BIT_SCALES.astype(np.float64)) - T
    wanted = np.where(inside, X.T.astype(np.float64) @ (2 * error / error.size), 0)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    assert float(module(X, T)) == pytest.approx((error**2).mean(), rel=1e-6)
    np.testing.assert_allclose(state.parameters["w"].grad, wanted, rtol=1e-5, atol=1e-6)


SCALES = np.float32([0.004, 0.01, 0.02])
GRANULARITIES = {  # scale, zero point, attributes, and how each is spread over w
    "axis": (SCALES, np.zeros(3, np.int8), {"axis": 1}, lambda a: a[None]),
    "points": (SCALES, np.uint8([3, 128, 140]), {"axis": -1}, lambda a: a[None]),
    "rows": (np.tile(SCALES, 2)[:4], np.full(4, 9, np.uint8), {"axis": 0}, lambda a: a[:, None]),
    "blocks": (
        np.float32([[0.004, 0.01, 0.02], [0.02, 0.01, 0.005]]),
        np.uint8([[100, 128, 140], [90, 120, 130]]),
        {"axis": 0, "block_size": 2},
        lambda a: a.repeat(2, 0),
    ),
}


def wanted(scale, point, low, high):
    """Loss, and gradient of w, in double precision."""
    scale, point = scale.astype(np.float64), point.astype(np.float64)
    whole = np.rint(W / scale) + point
    inside = (whole >= low) & (whole <= high)
    assert inside.any() and not inside.all()
    error = X.astype(np.float64) @ ((whole.clip(low, high) - point) * scale) - T
    return (error**2).mean(), np.where(inside, X.T.astype(np.float64) @ (2 * error / error.size), 0)


def check(folder, loss, gradient):
    """The reference and the device compute these."""
    reference = ReferenceTrainer(load_artifacts(folder))
    assert stepped(reference, X, T) == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(reference.gradients["w"], gradient, rtol=1e-5, atol=1e-6)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    assert float(module(X, T)) == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(state.parameters["w"].grad, gradient, rtol=1e-5, atol=1e-6)
    module.eval()
    assert float(module(X, T)) == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("name", GRANULARITIES)
def test_scales_along_an_axis(name, tmp_path):
    scale, point, attributes, spread = GRANULARITIES[name]
    proto = model(scale, point, **attributes)
    proto.opset_import[0].version = 21
    generate_artifacts(proto, loss=LossType.MSELoss, artifact_directory=tmp_path)
    (parameter,) = load_artifacts(tmp_path).checkpoint.parameters
    assert (parameter.name, parameter.trainable) == ("w", True)
    limits = np.iinfo(point.dtype)
    check(tmp_path, *wanted(spread(scale), spread(point), limits.min, limits.max))


def test_a_range_that_is_narrower_than_the_type(tmp_path):
    """As PyTorch writes weights of 7 bits."""
    proto = model(np.asarray(SCALE), np.asarray(POINT, np.int8))
    proto.graph.node[1].input[0] = "c"
    proto.graph.node.insert(1, helper.make_node("Clip", ["q", "low", "high"], ["c"]))
    bounds = [numpy_helper.from_array(np.array(n, np.int8), k) for k, n in (("low", -64), ("high", 63))]
    proto.graph.initializer.extend(bounds)
    generate_artifacts(proto, loss=LossType.MSELoss, artifact_directory=tmp_path)
    check(tmp_path, *wanted(SCALE, np.asarray(POINT), -64, 63))
    kinds = [node.op_type for node in load_artifacts(tmp_path).training.nodes]
    assert "QuantizeLinear" not in kinds and "Clip" not in kinds


def test_equal_pairs_for_several_readers_are_one(tmp_path):
    """As ONNX Runtime's quantizer writes them with `DedicatedQDQPair`; its gradient is that of one pair."""
    proto = model(np.asarray(SCALE), np.asarray(POINT, np.int8))
    copies = [helper.make_node(n.op_type, list(n.input), [f"{n.output[0]}2"]) for n in proto.graph.node[:2]]
    copies[1].input[0] = "q2"
    proto.graph.node[2].output[0] = "y1"
    for i, node in enumerate(copies):
        proto.graph.node.insert(2 + i, node)
    proto.graph.node.extend(
        [helper.make_node("MatMul", ["x", "d2"], ["y2"]), helper.make_node("Mean", ["y1", "y2"], ["y"])]
    )
    generate_artifacts(proto, loss=LossType.MSELoss, artifact_directory=tmp_path)
    kinds = [node.op_type for node in load_artifacts(tmp_path).training.nodes]
    assert kinds.count("FakeQuant") == kinds.count("FakeQuantGrad") == 1 and "QuantizeLinear" not in kinds
    check(tmp_path, *wanted(SCALE, np.asarray(POINT), -128, 127))


@pytest.mark.parametrize("kind", [np.int16, np.uint16])
def test_16_bits_before_onnx_has_them(kind, tmp_path):
    """As ONNX Runtime's quantizer writes them."""
    scale = np.float32(3e-5)
    proto = model(np.asarray(scale), np.asarray(300, kind))
    for node in proto.graph.node[:2]:
        node.domain = "com.microsoft"
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    generate_artifacts(proto, loss=LossType.MSELoss, artifact_directory=tmp_path)
    limits = np.iinfo(kind)
    check(tmp_path, *wanted(scale, np.asarray(300), limits.min, limits.max))


@pytest.mark.parametrize("name", [None, *GRANULARITIES])
def test_an_exported_model_quantises_as_the_forward_model_did(name, tmp_path):
    """In operators that runtimes for inference have."""
    scale, point, attributes, _ = (
        GRANULARITIES[name] if name else (np.asarray(SCALE), np.asarray(3, np.int8), {}, None)
    )
    proto = model(scale, point, **attributes)
    proto.opset_import[0].version = 21
    generate_artifacts(proto, loss=LossType.MSELoss, artifact_directory=tmp_path)
    artifacts = load_artifacts(tmp_path)
    _, data = export_model(artifacts, artifacts.checkpoint, ())
    exported = onnx.load_from_string(data)
    assert [n.op_type for n in exported.graph.node] == ["QuantizeLinear", "DequantizeLinear", "MatMul"]
    (y,) = ReferenceEvaluator(exported).run(None, {"x": X})
    np.testing.assert_array_equal(y, ReferenceEvaluator(proto).run(None, {"x": X})[0])


def test_what_no_gradient_flows_through_is_named(tmp_path):
    proto = model(np.asarray(SCALE), np.asarray(POINT, np.int8))
    proto.graph.node.insert(0, helper.make_node("ReduceMax", ["w"], ["s"], keepdims=0))
    del proto.graph.initializer[1]
    with pytest.warns(UserWarning, match="node 'quantise' .QuantizeLinear.: no gradient flows through it"):
        generate_artifacts(
            _with_bias(proto), requires_grad=["b"], loss=LossType.MSELoss, artifact_directory=tmp_path
        )


def _with_bias(proto):
    proto.graph.node[-1].output[0] = "h"
    proto.graph.node.append(helper.make_node("Add", ["h", "b"], ["y"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "b"))
    return proto
