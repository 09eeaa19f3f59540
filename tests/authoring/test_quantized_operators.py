"""Operators on quantised values become float operators between quantizers: the same numbers, and gradients flow."""

from __future__ import annotations

import numpy as np
import pytest
from authored import operators, stepped
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from quantizer_models import MICROSOFT, RANDOM, adapted, numbers, outputs, proto_of, scales, source_of

from minbuild.authoring import Recipe, artifacts_of
from minbuild.authoring.integer_operators.rewrite import with_float_operators
from minbuild.errors import BadInput, Unsupported
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer


def quantise(x, scale, zero):
    limits = np.iinfo(zero.dtype)
    return np.clip(np.rint(x / np.float64(scale)) + zero, limits.min, limits.max).astype(zero.dtype)


def dequantise(q, scale, zero):
    return (q.astype(np.float64) - zero) * np.float64(scale)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def windows(x):
    """Means of 2x2 windows."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5))


def elementwise(name: str, function, reads="x.q s z", shape=(6,), made=None, **flags):
    """A model of one operator, and its float function of x and the constant c."""
    nodes = [
        ("QuantizeLinear", "x s z", "x.q", {}),
        (f"{MICROSOFT}:{name}", f"{reads} y.s y.z", "y.q", flags),
        ("DequantizeLinear", "y.q y.s y.z", "y", {}),
    ]
    return nodes, function, shape, made or shape


C = "c c.s c.z"
ONE_OPERATOR = {
    "QLinearAdd": elementwise("QLinearAdd", lambda x, c: x + c, f"x.q s z {C}"),
    "QLinearMul": elementwise("QLinearMul", lambda x, c: x * c, f"{C} x.q s z"),
    "QLinearSigmoid": elementwise("QLinearSigmoid", lambda x, c: 1 / (1 + np.exp(-x))),
    "QLinearLeakyRelu": elementwise(
        "QLinearLeakyRelu", lambda x, c: np.where(x < 0, 0.25 * x, x), alpha=0.25
    ),
    "QLinearSoftmax": elementwise("QLinearSoftmax", lambda x, c: softmax(x), axis=-1, opset=17),
    "QLinearReduceMean": elementwise(
        "QLinearReduceMean", lambda x, c: x.mean(1, keepdims=True), made=(1,), axes=[1], keepdims=1
    ),
    "QLinearAveragePool": elementwise(
        "QLinearAveragePool",
        lambda x, c: windows(x),
        shape=(2, 4, 6),
        made=(2, 2, 3),
        kernel_shape=[2, 2],
        strides=[2, 2],
    ),
    "QLinearGlobalAveragePool": elementwise(
        "QLinearGlobalAveragePool",
        lambda x, c: x.mean((2, 3), keepdims=True),
        shape=(2, 4, 6),
        made=(2, 1, 1),
    ),
    "QLinearWhere": elementwise(
        "QLinearWhere",
        lambda x, c: np.where([True, False, True, True, False, True], x, c),
        f"where x.q s z {C}",
    ),
    "QLinearConcat": (
        [
            ("QuantizeLinear", "x s z", "x.q", {}),
            (f"{MICROSOFT}:QLinearConcat", "y.s y.z x.q s z x.q s z", "y.q", {"axis": 1}),
            ("DequantizeLinear", "y.q y.s y.z", "y", {}),
        ],
        lambda x, c: np.concatenate((x, x), 1),
        (6,),
        (12,),
    ),
}


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("name", ONE_OPERATOR)
def test_one_operator_of_quantised_values(name, opset, kind):
    nodes, function, shape, made = ONE_OPERATOR[name]
    limits = np.iinfo(kind)
    constants = {
        **{"s": np.float32(0.03), "z": kind(limits.max - 120), "c": numbers(kind, 6)},
        **{"c.s": np.float32(0.02), "c.z": kind(9), "y.s": np.float32(0.017), "y.z": kind(limits.max - 131)},
        "where": np.array([True, False, True, True, False, True]),
    }
    proto = proto_of(nodes, constants, (shape, made), opset)
    artifacts = artifacts_of(source_of(proto), Recipe(loss="mse", tolerant=True, outputs=("y",)), registry())
    assert not [n for n in operators(artifacts) if n.startswith("QL") or n == "QuantizeLinear"]
    x = RANDOM.standard_normal((5, *shape)).astype(np.float32) * 2
    real = dequantise(quantise(x, constants["s"], constants["z"]), constants["s"], constants["z"])
    result = function(real, dequantise(constants["c"], constants["c.s"], constants["c.z"]))
    steps = result / np.float64(constants["y.s"])
    assert (np.abs(steps - np.floor(steps) - 0.5) > 1e-9).all()  # no ties, which rounding errors may decide
    wanted = dequantise(
        quantise(result, constants["y.s"], constants["y.z"]), constants["y.s"], constants["y.z"]
    )
    np.testing.assert_allclose(outputs(artifacts, x, made), wanted, rtol=1e-6, atol=1e-7)


NET = [  # convolution, pooling, products with a bias and without
    ("QuantizeLinear", "x x.s x.z", "x.q", {}),
    ("QLinearConv", "x.q x.s x.z k k.s k.z c.s c.z k.b", "c.q", {"pads": [1] * 4}),
    ("MaxPool", "c.q", "m.q", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("Transpose", "m.q", "t.q", {"perm": [0, 2, 3, 1]}),
    ("Reshape", "t.q rows", "f.q", {}),
    (f"{MICROSOFT}:QGemm", "f.q c.s c.z g g.s g.z g.b h.s h.z", "h.q", {"transB": 1}),
    ("QLinearMatMul", "h.q h.s h.z v v.s v.z y.s y.z", "y.q", {}),
    ("DequantizeLinear", "y.q y.s y.z", "y", {}),
]
PAIRS = [  # the same by pairs of quantizers
    ("QuantizeLinear", "x x.s x.z", "x.q", {}),
    ("DequantizeLinear", "x.q x.s x.z", "x.f", {}),
    ("DequantizeLinear", "k k.s k.z", "k.f", {"axis": 0}),
    ("DequantizeLinear", "k.b k.b.s", "k.b.f", {"axis": 0}),
    ("Conv", "x.f k.f k.b.f", "c", {"pads": [1] * 4}),
    ("QuantizeLinear", "c c.s c.z", "c.q", {}),
    ("DequantizeLinear", "c.q c.s c.z", "c.f", {}),
    ("MaxPool", "c.f", "m", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("Transpose", "m", "t", {"perm": [0, 2, 3, 1]}),
    ("Reshape", "t rows", "f", {}),
    ("DequantizeLinear", "g g.s g.z", "g.f", {"axis": 0}),
    ("DequantizeLinear", "g.b g.b.s", "g.b.f", {"axis": 0}),
    ("Gemm", "f g.f g.b.f", "h", {"transB": 1}),
    ("QuantizeLinear", "h h.s h.z", "h.q", {}),
    ("DequantizeLinear", "h.q h.s h.z", "h.f", {}),
    ("DequantizeLinear", "v v.s v.z", "v.f", {"axis": 1}),
    ("MatMul", "h.f v.f", "u", {}),
    ("QuantizeLinear", "u y.s y.z", "y.q", {}),
    ("DequantizeLinear", "y.q y.s y.z", "y", {}),
]


def net_constants() -> dict[str, np.ndarray]:
    found = {
        **{"x.s": np.float32(0.02), "x.z": np.uint8(128), "c.s": np.float32(0.05), "c.z": np.uint8(120)},
        **{"h.s": np.float32(0.2), "h.z": np.uint8(117), "y.s": np.float32(0.5), "y.z": np.uint8(125)},
        **{"k": numbers(np.int8, 4, 2, 3, 3), "k.s": scales(4), "k.z": np.zeros(4, np.int8)},
        **{"g": numbers(np.int8, 6, 16), "g.s": scales(6), "g.z": np.zeros(6, np.int8)},
        **{"v": numbers(np.int8, 6, 3), "v.s": scales(3), "v.z": np.zeros(3, np.int8)},
        "rows": np.array([-1, 16]),
        **{"k.b": RANDOM.integers(-999, 999, 4).astype(np.int32)},
        **{"g.b": RANDOM.integers(-999, 999, 6).astype(np.int32)},
    }
    return {**found, "k.b.s": found["x.s"] * found["k.s"], "g.b.s": found["c.s"] * found["g.s"]}


@pytest.mark.parametrize("opset", [11, 17, 21])
def test_a_network_of_quantised_operators_trains_as_by_pairs(opset):
    """Bit for bit, forward and backward; before opset 13 DequantizeLinear has no axis, so ONNX Runtime's own stands
    there."""
    constants = net_constants()
    x, t = (RANDOM.standard_normal((7, *shape)).astype(np.float32) for shape in ((2, 4, 4), (3,)))
    found = []
    for nodes, version in ((NET, opset), (PAIRS, max(13, opset))):
        artifacts = adapted(proto_of(nodes, constants, ((2, 4, 4), (3,)), version))
        assert not [n for n in operators(artifacts) if n.startswith("Q")]
        trainer = ReferenceTrainer(artifacts)
        names = [p.name for p in artifacts.checkpoint.parameters]
        assert names == [f"{w}.lora_{k}" for w in "kgv" for k in "AB"]
        random = np.random.default_rng(2)
        trainer.parameters |= {n: random.standard_normal(trainer.parameters[n].shape) / 8 for n in names}
        found.append((stepped(trainer, x, t), {n: g.tobytes() for n, g in trainer.gradients.items()}))
    assert found[0] == found[1]


class QGemm(OpRun):
    """The integer form of ONNX Runtime's operator."""

    op_domain = MICROSOFT

    def _run(self, *inputs, transB=0):
        a, a_scale, a_zero, b, b_scale, b_zero, c, scale, zero = inputs
        sums = (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero[:, None]).T + c
        return (quantise(sums * (np.float64(a_scale) * b_scale), scale, zero),)


def test_a_network_of_quantised_operators_has_the_integers_of_its_products():
    proto = proto_of(NET, net_constants(), ((2, 4, 4), (3,)))
    x = RANDOM.standard_normal((7, 2, 4, 4)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(proto, new_ops=[QGemm]).run(None, {"x": x})
    np.testing.assert_allclose(outputs(adapted(proto), x, (3,)), wanted, rtol=1e-6)
    assert np.unique(wanted).size > 5


def test_quantised_rows_of_a_table_are_a_layer():
    """Behind a Gather of integers, as the quantizer leaves an embedding."""
    nodes = [
        ("Abs", "x", "size", {}),
        ("Cast", "size", "ids", {"to": TensorProto.INT64}),
        ("Gather", "table ids", "rows.q", {}),
        ("DequantizeLinear", "rows.q s z", "y", {}),
    ]
    constants = {"table": numbers(np.uint8, 9, 5), "s": np.float32(0.02), "z": np.uint8(120)}
    proto = proto_of(nodes, constants, ((4,), (4, 5)))
    artifacts = adapted(proto)
    assert [p.name for p in artifacts.checkpoint.parameters] == ["table.lora_A", "table.lora_B"]
    x = np.arange(8).reshape(2, 4).astype(np.float32)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(outputs(artifacts, x, (4, 5)), wanted, rtol=1e-6)


@pytest.mark.parametrize("given", [True, False])
def test_padding_is_a_quantised_number(given):
    nodes = [
        ("QuantizeLinear", "x s z", "x.q", {}),
        ("Pad", "x.q pads" + " value" * given, "p.q", {}),
        ("Slice", "p.q start end axes", "c.q", {}),
        ("DequantizeLinear", "c.q s z", "y", {}),
    ]
    constants = {
        "s": np.float32(0.02),
        "z": np.uint8(120),
        "pads": np.array([0, 1, 0, 2]),
        "value": np.uint8(131),
    }
    constants |= {"start": np.array([1]), "end": np.array([7]), "axes": np.array([1])}
    proto = proto_of(nodes, constants, ((5,), (6,)))
    artifacts = artifacts_of(source_of(proto), Recipe(loss="mse", tolerant=True, outputs=("y",)), registry())
    kinds = operators(artifacts)
    assert (
        kinds.index("FakeQuant") < kinds.index("Pad") < kinds.index("Slice") and "QuantizeLinear" not in kinds
    )
    x = RANDOM.standard_normal((3, 5)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(outputs(artifacts, x, (6,)), wanted, rtol=1e-6)


def test_float_models_stay_as_they_are():
    graph = source_of(proto_of([("Relu", "x", "y", {})], {}, ((3,), (3,)))).graph
    assert with_float_operators(graph, 17) is graph


REFUSED = {
    "lstm": (
        (f"{MICROSOFT}:DynamicQuantizeLSTM", "x c c - - - - - c c c c", "y", {"hidden_size": 2}),
        r"node '.*' .com.microsoft:DynamicQuantizeLSTM, opset 1.: .*op_types_to_quantize=\['MatMul', 'Gather'\]",
    ),
    "channels": (
        (f"{MICROSOFT}:QLinearGlobalAveragePool", "x c c c c", "y", {"channels_last": 1}),
        "QLinearGlobalAveragePool.*Quantise again with quant_format=QuantFormat.QDQ",
    ),
    "softmax": (
        (f"{MICROSOFT}:QLinearSoftmax", "x c c c c", "y", {"axis": 1, "opset": 11}),
        "QLinearSoftmax.*Quantise again with quant_format=QuantFormat.QDQ",
    ),
    "attention": ((f"{MICROSOFT}:QAttention", "x c c c c", "y", {}), "Quantise the model as it was exported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_a_cure(name):
    node, cure = REFUSED[name]
    nodes = [node, ("Add", "y b", "z", {})]
    proto = proto_of(nodes, {"c": np.float32(1), "b": np.ones(3, np.float32)}, ((3,), (3,)))
    with pytest.raises(Unsupported, match=cure):
        artifacts_of(source_of(proto), Recipe(loss="mse"), registry())


def test_tables_of_integers_are_no_layers():
    nodes = [
        ("Abs", "x", "size", {}),
        ("Cast", "size", "ids", {"to": TensorProto.INT64}),
        ("Gather", "table ids", "rows", {}),
        ("Cast", "rows", "y", {"to": TensorProto.FLOAT}),
    ]
    proto = proto_of(nodes, {"table": np.arange(6).reshape(3, 2)}, ((4,), (4, 2)))
    with pytest.raises(BadInput, match=r"--lora \*: .*no layer has such a weight"):
        adapted(proto)
