"""Weights in float8: they stay in a byte each, also in exported models, and train as the same numbers in float do."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import trainers
from beside_interpreter import farthest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from planned_models import compiled

from minbuild.authoring import Recipe, Source, artifacts_of
from minbuild.errors import Unsupported
from minbuild.frontend.onnx.reader import read_model
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry
from minbuild.planning.inference_export import export_model
from minbuild.planning.kernel_selection import contents_of
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import TRAIN, Session

TYPES = {
    "e4m3fn": (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
    "e4m3fnuz": (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
    "e5m2": (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
    "e5m2fnuz": (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
}
BATCH, IDS, CLASSES, WIDTH = 3, 11, 5, 36
# Layers by the shape of their weights, the axis of their scales, and the nodes that turn `x` into `y`.
LAYERS = {
    "product": ((WIDTH, 40), None, "y = MatMul (x, w)"),
    "product, a scale a column": ((WIDTH, 40), 1, "y = MatMul (x, w)"),
    "turned product, a scale a row": ((40, WIDTH), 0, "y = Gemm <transB = 1> (x, w)"),
    "blocks": ((WIDTH, 40), (0, 12), "y = MatMul (x, w)"),
    "convolution": (
        (4, 1, 3, 3),
        0,
        "i = Reshape (x, image) c = Conv <pads = [1,1,1,1]> (i, w) y = Flatten (c)",
    ),
    "embedding": ((IDS, WIDTH), 0, "y = Gather (w, ids)"),
    "cast": ((WIDTH, 40), "cast", "y = MatMul (x, w)"),
}
random = np.random.default_rng(5)
X = random.standard_normal((BATCH, WIDTH)).astype(np.float32)
BATCHES = [(X, random.integers(0, IDS, BATCH), random.standard_normal((BATCH, CLASSES)).astype(np.float32))]


def float8(name: str, array: np.ndarray, kind: str) -> onnx.TensorProto:
    number, dtype = TYPES[kind]
    return helper.make_tensor(name, number, array.shape, array.astype(dtype).tobytes(), raw=True)


def model_of(layer: str, kind: str, packed: bool, body: str = "") -> Source:
    """A frozen layer with weights of `kind`, or with the same numbers in float, and one that trains behind it."""
    shape, axis, nodes = LAYERS[layer]
    numbers = np.random.default_rng(3)
    weights = (numbers.standard_normal(shape) * 3).astype(TYPES[kind][1])
    attributes, scales = "", np.float32(0.125)
    if isinstance(axis, tuple):
        scales = np.exp2(numbers.integers(-4, 2, (shape[0] // axis[1], shape[1]))).astype(np.float32) * 1.1
        attributes = f"<axis = {axis[0]}, block_size = {axis[1]}>"
        spread = np.repeat(scales, axis[1], 0)
    elif isinstance(axis, int):
        scales = numbers.uniform(0.1, 1, shape[axis]).astype(np.float32)
        attributes = f"<axis = {axis}>"
        spread = scales.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    else:
        spread = scales if axis is None else np.float32(1)
    read = "w = Cast <to = 1> (q)" if axis == "cast" else f"w = DequantizeLinear {attributes} (q, s, z)"
    text = f"""m (float[{BATCH},{WIDTH}] x, int64[{BATCH}] ids) => (float[{BATCH},{CLASSES}] out) {{
        {body or (read if packed else "w = Identity (wide)")}
        {nodes} t = Tanh (y) out = MatMul (t, v)
    }}"""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    wide = weights.astype(np.float32) * spread
    columns = {"convolution": 4 * WIDTH, "embedding": WIDTH}.get(layer, 40)
    v = numbers.standard_normal((columns, CLASSES)).astype(np.float32)
    arrays = {"s": np.asarray(scales), "wide": wide, "v": v, "image": np.array([BATCH, 1, 6, 6])}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    model.graph.initializer.append(float8("q", weights, kind))
    model.graph.initializer.append(float8("z", np.zeros(np.shape(scales)), kind))
    return source_of(model)


def source_of(model: onnx.ModelProto) -> Source:
    return Source(read_model(model, Path("model.onnx")), 21, Path("model.onnx"))


def artifacts(model: Source) -> TrainingArtifacts:
    return artifacts_of(model, Recipe("mse", optimizer="sgd", train=("v",), input_gradients=()), registry())


def test_trainers_compute_what_their_graphs_say(tmp_path):
    made = {f"{layer} {k}": artifacts(model_of(layer, k, packed=True)) for layer in LAYERS for k in TYPES}
    recipe = Recipe("mse", optimizer="sgd")
    made |= {
        f"{pair} {k}": artifacts_of(quantizing(pair, k), recipe, registry()) for pair in PAIRS for k in TYPES
    }
    assert max(farthest(made, dict.fromkeys(made, BATCHES), tmp_path).values()) < 1e-6


@pytest.mark.parametrize("layer", LAYERS)
def test_bits_are_those_of_the_same_numbers_in_float_and_constants_are_bytes(layer, tmp_path):
    found, sizes = [], []
    for packed in (True, False):
        model = compiled(artifacts(model_of(layer, "e4m3fn", packed)), registry())
        folder = tmp_path / str(packed)
        folder.mkdir()
        library = trainers.library_of(contents_of([model]), registry(), folder)
        session = Session(library, model.plan_bytes, model.checkpoint, [])
        found.append([*session.run(TRAIN, BATCHES[0]), session.gradient("v")])
        sizes.append(len(model.plan.constants))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    shape, _, _ = LAYERS[layer]
    scales = 4 * int(np.prod(shape)) // 12 if layer == "blocks" else 4 * max(shape)
    assert sizes[0] <= int(np.prod(shape)) + 4 * 256 + scales + 128


# ------------------------------------------------------------------------------- what is quantised in the graph

PAIRS = {
    "activations": "p = QuantizeLinear (x, s, z) d = DequantizeLinear (p, s, z) y = MatMul (d, wide)",
    "weights": "p = QuantizeLinear <axis = 1> (wide, r, o) d = DequantizeLinear <axis = 1> (p, r, o) y = MatMul (x, d)",
    "rows of weights": "p = QuantizeLinear <axis = 0> (wide, r, o) d = DequantizeLinear <axis = 0> (p, r, o) "
    "y = Gemm (x, d)",
    "by type": "p = QuantizeLinear <output_dtype = KIND> (x, s) d = DequantizeLinear (p, s) y = MatMul (d, wide)",
    "casts": "p = Cast <to = KIND> (x) d = Cast <to = 1> (p) y = MatMul (d, wide)",
}


def quantizing(pair: str, kind: str) -> Source:
    number, _ = TYPES[kind]
    axis = 0 if pair == "rows of weights" else 1
    text = f"""m (float[{BATCH},{WIDTH}] x, int64[{BATCH}] ids) => (float[{BATCH},{CLASSES}] out) {{
        {PAIRS[pair].replace("KIND", str(int(number)))} t = Tanh (y) out = MatMul (t, v) }}"""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    numbers, shape = np.random.default_rng(3), (WIDTH, 40)
    arrays = {"s": np.float32(0.003 if kind[1] == "4" else 2e-5), "wide": numbers.standard_normal(shape) / 6}
    arrays |= {"v": numbers.standard_normal((40, CLASSES)), "r": numbers.uniform(0.0002, 0.002, shape[axis])}
    arrays["r"] *= 1 if kind[1] == "4" else 0.01
    held = {n: np.asarray(a, np.float32) for n, a in arrays.items()}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in held.items())
    model.graph.initializer.append(float8("z", np.zeros(()), kind))
    model.graph.initializer.append(float8("o", np.zeros(shape[axis]), kind))
    return source_of(model)


def rounded(x: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the type, the largest one for what is beyond it; and where nothing is."""
    dtype = TYPES[kind][1]
    most = float(ml_dtypes.finfo(dtype).max)
    return np.clip(x, -most, most).astype(np.float32).astype(dtype).astype(np.float64), np.abs(x) <= most


@pytest.mark.unit
@pytest.mark.parametrize("kind", TYPES)
def test_quantizers_round_and_let_gradients_straight_through(kind):
    target = BATCHES[0][2].astype(np.float64)
    for pair in PAIRS:
        made = artifacts_of(quantizing(pair, kind), Recipe("mse", optimizer="sgd"), registry())
        trainer = ReferenceTrainer(made)
        arrays = {n: np.asarray(a, np.float64) for n, a in quantizing(pair, kind).graph.initializers.items()}
        x, w, v = X.astype(np.float64), arrays["wide"], arrays["v"]
        inside: np.ndarray = np.ones_like(w, bool)
        if "weights" in pair:
            scale = arrays["r"][:, None] if pair.startswith("rows") else arrays["r"]
            q, inside = rounded(w / scale, kind)
            w = q * scale
        else:
            scale = 1.0 if pair == "casts" else arrays["s"]
            x = rounded(x / scale, kind)[0] * scale
        hidden = np.tanh(x @ w)
        difference = hidden @ v - target
        loss = trainer.train_step(*BATCHES[0])[0]
        assert float(loss) == pytest.approx((difference**2).mean(), rel=1e-6)
        back = (2 * difference / difference.size) @ v.T * (1 - hidden**2)
        np.testing.assert_allclose(trainer.gradients["wide"], x.T @ back * inside, rtol=1e-5, atol=1e-9)
        assert pair != "weights" or not inside.all()


# ------------------------------------------------------------------------------------------- exported for inference


def exported(made: TrainingArtifacts) -> onnx.ModelProto:
    """The inference model, which has operators that other runtimes know."""
    _, data = export_model(made, made.checkpoint, ())
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain for entry in model.opset_import} == {""}
    return model


def output(model: onnx.ModelProto) -> np.ndarray:
    session = ReferenceEvaluator(model)
    feeds = {n: a for n, a in zip(("x", "ids"), BATCHES[0], strict=False) if n in session.input_names}
    return session.run(None, feeds)[0]


@pytest.mark.unit
@pytest.mark.parametrize("layer", LAYERS)
def test_an_exported_model_has_its_weights_in_float8(layer: str) -> None:
    """And gives what the same numbers in float give."""
    wide = output(exported(artifacts(model_of(layer, "e4m3fn", packed=False))))
    for kind, (number, _) in TYPES.items():
        model = exported(artifacts(model_of(layer, kind, packed=True)))
        (weights,) = (t for t in model.graph.initializer if t.data_type == number)
        assert (weights.name, tuple(weights.dims)) == ("q", LAYERS[layer][0])
        assert len(weights.raw_data) == np.prod(LAYERS[layer][0])
        assert [n.op_type for n in model.graph.node].count("DequantizeLinear") == 1
        assert kind != "e4m3fn" or np.array_equal(output(model), wide)
        again = artifacts_of(source_of(model), Recipe("mse", optimizer="sgd", train=("v",)), registry())
        assert np.array_equal(output(exported(again)), output(model))


@pytest.mark.unit
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("pair", PAIRS)
def test_an_exported_model_rounds_as_its_trainer_does(pair: str, kind: str) -> None:
    made = artifacts_of(quantizing(pair, kind), Recipe("mse", optimizer="sgd"), registry())
    model = exported(made)
    casts = [n.attribute[0].i for n in model.graph.node if n.op_type == "Cast"]
    assert casts == [TYPES[kind][0], TensorProto.FLOAT]
    loss = ReferenceTrainer(made).eval_step(*BATCHES[0])[0]
    assert ((output(model) - BATCHES[0][2]) ** 2).mean() == pytest.approx(float(loss), rel=1e-5)


# ------------------------------------------------------------------------------------------------------------ refused


@pytest.mark.unit
@pytest.mark.parametrize(
    "body, reason",
    [
        (
            "a = Transpose (q) w = DequantizeLinear (q, s, z)",
            "Transpose.* reads 'q', which is in float8e4m3fn",
        ),
        ("f = Cast <to = 10> (s) w = DequantizeLinear (q, f, z)", "scales that are no constants in float"),
        (
            "a = QuantizeLinear <saturate = 0> (x, s, z) w = DequantizeLinear (q, s, z)",
            "QuantizeLinear.* quantises to float8e4m3fn without saturation",
        ),
        (
            "a = QuantizeLinear (x, t, z) w = DequantizeLinear (q, s, z)",
            "QuantizeLinear.* by scales that are no constants",
        ),
        (
            "a = Cast <to = 19> (x) b = Neg (a) w = DequantizeLinear (q, s, z)",
            "Neg.* reads 'a', which is in float8e5m2",
        ),
        ("a = Cast <to = 17> (q) w = DequantizeLinear (q, s, z)", "Cast.* reads 'q', which is in float8"),
    ],
)
def test_other_uses_are_refused_with_the_node_and_a_cure(body, reason):
    text = body.replace("(x, t, z)", "(x, many, z)") if "t, z" in body else body
    head = "many = Abs (x) " if text != body else ""
    with pytest.raises(Unsupported, match=reason) as caught:
        model_of("product", "e4m3fn", packed=True, body=head + text)
    cures = "Convert them to float", "activation_type=QuantType.QInt8", "Quantise it by one scale"
    assert any(cure in str(caught.value) for cure in cures)
