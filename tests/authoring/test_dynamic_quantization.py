"""Dynamically quantised models train with adapters: integer products become products of a fake quantizer."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from authored import operators, stepped
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from quantizer_models import (
    MICROSOFT,
    RANDOM,
    adapted,
    fake_quantised,
    numbers,
    outputs,
    proto_of,
    scales,
    source_of,
)

from minbuild.authoring import Recipe, make_artifacts
from minbuild.authoring.autodiff.gradcheck import checked_gradients
from minbuild.authoring.integer_operators.rewrite import with_float_operators
from minbuild.authoring.recipe import LoraOptions
from minbuild.frontend.artifacts import load_artifacts
from minbuild.planning.inference_export import export_model
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.api import CheckpointState, Module
from minbuild.training.artifacts import LossType, generate_artifacts


def dynamic_layer(i: int, x: str, y: str, integer="MatMulInteger", **flags):
    """As `quantize_dynamic` writes a layer without a bias."""
    return [
        ("DynamicQuantizeLinear", x, f"{x}.q {x}.s {x}.z", {}),
        ("Mul", f"{x}.s w{i}.s", f"{y}.factor", {}),
        (integer, f"{x}.q w{i} {x}.z w{i}.z", f"{y}.sum", flags),
        ("Cast", f"{y}.sum", f"{y}.cast", {"to": TensorProto.FLOAT}),
        ("Mul", f"{y}.cast {y}.factor", y, {}),
    ]


def weights(i, dtype, shape, scale_shape=(), zero=None):
    points = np.zeros(scale_shape, dtype) if zero is None else zero
    return {f"w{i}": numbers(dtype, *shape), f"w{i}.s": scales(*scale_shape), f"w{i}.z": points}


PERCEPTRON = (
    [
        *dynamic_layer(0, "x", "h"),
        ("Add", "h b", "a", {}),
        ("Relu", "a", "r", {}),
        *dynamic_layer(1, "r", "y"),
    ],
    {
        **weights(0, np.int8, (5, 6), (6,), numbers(np.int8, 6)),
        **weights(1, np.uint8, (6, 3), (), np.uint8(117)),
        "b": RANDOM.standard_normal(6).astype(np.float32) / 8,
    },
    ((5,), (3,)),
)
IMAGES = (
    [
        *dynamic_layer(0, "x", "h", "ConvInteger", pads=[1] * 4),
        *dynamic_layer(1, "h", "c", "ConvInteger", strides=[2, 2]),
        ("GlobalAveragePool", "c", "p", {}),
        ("Flatten", "p", "y", {}),
    ],
    {
        **weights(0, np.int8, (4, 2, 3, 3), (4, 1, 1), np.zeros((4,), np.int8)),
        **weights(1, np.uint8, (3, 4, 1, 1), (), np.uint8(130)),
    },
    ((2, 5, 5), (3,)),
)


@pytest.mark.parametrize("model", [PERCEPTRON, IMAGES], ids=["products", "convolutions"])
def test_a_dynamically_quantised_model_computes_the_same_with_adapters(model):
    proto = proto_of(*model)
    artifacts = adapted(proto)
    assert [p.name for p in artifacts.checkpoint.parameters] == [
        f"w{i}.lora_{k}" for i in (0, 1) for k in "AB"
    ]
    assert {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"}.isdisjoint(operators(artifacts))
    x = RANDOM.standard_normal((7, *model[2][0])).astype(np.float32)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(outputs(artifacts, x, model[2][1]), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", [PERCEPTRON, IMAGES], ids=["products", "convolutions"])
def test_an_exported_model_is_dynamically_quantised_again(model):
    proto = proto_of(*model)
    artifacts = adapted(proto)
    _, data = export_model(artifacts, artifacts.checkpoint, ("y",))
    x = RANDOM.standard_normal((7, *model[2][0])).astype(np.float32)
    found, wanted = (ReferenceEvaluator(m).run(None, {"x": x})[0] for m in (data, proto))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_gradients_of_adapters_go_straight_through_dynamic_quantisation(tmp_path):
    """The reference and the device; an adapter reads its layer's input before that is quantised."""
    nodes, constants, shapes = PERCEPTRON
    path = tmp_path / "artifacts"
    path.mkdir()
    generate_artifacts(
        proto_of(nodes, constants, shapes),
        lora=["*"],
        lora_rank=2,
        loss=LossType.MSELoss,
        artifact_directory=path,
    )
    x, t = (RANDOM.standard_normal((9, n)).astype(np.float32) for n in (5, 3))
    reference = ReferenceTrainer(load_artifacts(path))
    p = {n: RANDOM.standard_normal(a.shape).astype(np.float32) / 4 for n, a in reference.parameters.items()}
    wide = {n: a.astype(np.float64) for n, a in (p | constants).items()}
    w0, w1 = ((wide[f"w{i}"] - wide[f"w{i}.z"]) * wide[f"w{i}.s"] for i in (0, 1))
    a0, b0, a1, b1 = (wide[f"w{i}.lora_{k}"] for i in (0, 1) for k in "AB")
    wide_x = x.astype(np.float64)
    r = np.maximum(fake_quantised(wide_x) @ w0 + wide_x @ a0 @ b0 + wide["b"], 0)
    error = fake_quantised(r) @ w1 + r @ a1 @ b1 - t
    dy = 2 * error / error.size
    dh = (dy @ (w1 + a1 @ b1).T) * (r > 0)
    wanted = {
        "w0.lora_A": wide_x.T @ dh @ b0.T,
        "w0.lora_B": (wide_x @ a0).T @ dh,
        "w1.lora_A": r.T @ dy @ b1.T,
        "w1.lora_B": (r @ a1).T @ dy,
    }
    reference.parameters |= {n: a.astype(np.float64) for n, a in p.items()}
    assert stepped(reference, x, t) == pytest.approx((error**2).mean(), rel=1e-9)
    state = CheckpointState.load_checkpoint(path / "checkpoint")
    for name, array in p.items():
        state.parameters[name].data = array
    module = Module(path / "training_model.onnx", state, path / "eval_model.onnx")
    assert float(module(x, t)) == pytest.approx((error**2).mean(), rel=1e-5)
    for name, gradient in wanted.items():
        np.testing.assert_allclose(reference.gradients[name], gradient, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.parameters[name].grad, gradient, rtol=1e-4, atol=1e-5)


def test_a_range_of_zeros_has_a_scale():
    """As in ONNX Runtime; ONNX's own function divides by zero."""
    found = outputs(adapted(proto_of(*PERCEPTRON)), np.zeros((2, 5), np.float32), (3,))
    assert np.isfinite(found).all() and (found[0] == found[1]).all()


def test_products_by_another_zero_point_stay_integer_products():
    nodes, constants, shapes = PERCEPTRON
    nodes = [(op, reads.replace("x.z", "other"), made, flags) for op, reads, made, flags in nodes]
    graph = with_float_operators(
        source_of(proto_of(nodes, {**constants, "other": np.uint8(3)}, shapes)).graph, 21
    )
    kinds = [node.op_type for node in graph.nodes]
    assert kinds.count("MatMulInteger") == kinds.count("DynamicQuantizeLinear") == 1
    assert kinds.count("DynamicFakeQuant") == 1


def test_a_weight_of_two_layers_is_dequantised_once():
    nodes = [*dynamic_layer(0, "x", "h"), *dynamic_layer(0, "h", "y")]
    proto = proto_of(nodes, weights(0, np.int8, (4, 4), (4,)), ((4,), (4,)))
    graph = with_float_operators(source_of(proto).graph, 21)
    assert [n.op_type for n in graph.nodes].count("DequantizeLinear") == 1
    artifacts = adapted(proto)
    assert len(artifacts.checkpoint.parameters) == 2


FUSED = {  # products that ONNX Runtime's optimizer makes of the nodes, with a bias
    "DynamicQuantizeMatMul": [(f"{MICROSOFT}:DynamicQuantizeMatMul", "x w0 w0.s w0.z b", "y", {})],
    "MatMulIntegerToFloat": [
        ("DynamicQuantizeLinear", "x", "x.q x.s x.z", {}),
        (f"{MICROSOFT}:MatMulIntegerToFloat", "x.q w0 x.s w0.s x.z w0.z b", "y", {}),
    ],
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_nodes_compute_what_their_parts_do(name):
    _, constants, _ = PERCEPTRON
    constants = {n: a for n, a in constants.items() if not n.startswith("w1")}
    parts = [*dynamic_layer(0, "x", "h"), ("Add", "h b", "y", {})]
    x = RANDOM.standard_normal((4, 5)).astype(np.float32)
    found, wanted = (
        outputs(adapted(proto_of(nodes, constants, ((5,), (6,)))), x, (6,)) for nodes in (FUSED[name], parts)
    )
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("model", [PERCEPTRON, IMAGES], ids=["products", "convolutions"])
def test_gradients_are_those_of_the_loss_without_rounding(model, tmp_path):
    recipe = Recipe(loss="mse", lora=LoraOptions(("*",), 2))
    path = tmp_path / "model.onnx"
    onnx.save(proto_of(*model), path)
    assert len(checked_gradients(make_artifacts(path, recipe))) == 1
