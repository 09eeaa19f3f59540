"""`minbuild export --quantize`: what is written, how near its outputs are, what stays in float, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import Command, command_fixture  # noqa: F401
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from minbuild.authoring import Recipe, Source, make_artifacts, write_artifacts
from minbuild.authoring.recipe import LoraOptions
from minbuild.frontend.onnx.reader import read_model
from minbuild.quantization.layers import Constants, with_folded_normalization
from minbuild.quantization.ranges import activation_range, quantized_weight, weight_range

pytestmark = pytest.mark.unit
NET = """<ir_version: 8, opset_import: ["" : 19]>
    m (float[n,3,8,8] x) => (float[n,5] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, conv_weight, conv_bias)
        b = BatchNormalization (c, scale, shift, mean, variance)
        r = Relu (b)
        p = GlobalAveragePool (r)
        f = Flatten (p)
        t = Transpose <perm = [1, 0]> (mid_weight)
        h = MatMul (f, t)
        a = Relu (h)
        y = Gemm <transB = 1> (a, head_weight, head_bias)
    }"""


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def weights() -> dict[str, np.ndarray]:
    return {
        "conv_weight": random(16, 3, 3, 3),
        "conv_bias": random(16),
        "scale": 1 + random(16, seed=1) / 4,
        "shift": random(16, seed=2),
        "mean": random(16, seed=3),
        "variance": np.square(random(16, seed=4)) + 0.1,
        "mid_weight": random(12, 16),
        "head_weight": random(5, 12) / 4,
        "head_bias": random(5),
    }


def proto(text: str = NET, arrays: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    arrays = weights() if arrays is None else arrays
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    return model


def artifacts(folder: Path, text: str = NET, arrays: dict[str, np.ndarray] | None = None, **recipe) -> Path:
    path = Path("model.onnx")
    model = proto(text, arrays)
    source = Source(read_model(model, path), model.opset_import[0].version, path)
    write_artifacts(make_artifacts(source, Recipe(loss="mse", **recipe)), folder)
    return folder


def batch(folder: Path, number: int = 0, **arrays: np.ndarray) -> Path:
    path = folder / f"batch{number}.npz"
    np.savez(path, **(arrays or {"x": random(4, 3, 8, 8, seed=10 + number)}))
    return path


def arrays_in(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def output(path: Path, x: np.ndarray) -> np.ndarray:
    return np.asarray(ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0])


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def test_the_written_model_is_in_8_bits_and_near(minbuild: Command, tmp_path: Path) -> None:
    made, small, large = artifacts(tmp_path / "a"), tmp_path / "small.onnx", tmp_path / "large.onnx"
    for number in range(3):
        batch(tmp_path, number)
    done = minbuild(
        "export", made, "--out", small, "--quantize", "--batches", tmp_path, "--max-difference", "0.02"
    )
    assert done.code == 0, done.err
    assert "3 of 3 layers in 8 bits, 0 in weights alone, 0 in float" in done.out
    assert minbuild("export", made, "--out", large).code == 0
    onnx.checker.check_model(onnx.load(small), full_check=True)
    held = arrays_in(small)
    eight = {n: a for n, a in held.items() if a.dtype == np.int8 and a.ndim > 1}
    assert sorted(a.shape for a in eight.values()) == [(5, 12), (16, 3, 3, 3), (16, 12)]
    scales = {n: held[n.replace("/quantized", "/scale")].shape for n in eight}
    assert scales == {"b/weight/quantized": (16,), "h/weight/quantized": (12,), "y/weight/quantized": (5,)}
    biases = [n for n, a in held.items() if a.dtype == np.int32 and n.endswith("/quantized")]
    assert sorted(biases) == ["b/bias/quantized", "y/bias/quantized"]
    assert not [n for n, a in held.items() if a.dtype == np.float32 and a.ndim > 1]
    kinds = [node.op_type for node in onnx.load(small).graph.node]
    assert (
        "BatchNormalization" not in kinds and "Transpose" not in kinds and kinds.count("QuantizeLinear") == 3
    )
    for number in range(3):
        x = random(4, 3, 8, 8, seed=10 + number)
        assert 0 < difference(output(small, x), output(large, x)) < 0.02


def test_layers_that_make_more_difference_than_allowed_stay_in_float(
    minbuild: Command, tmp_path: Path
) -> None:
    made, data = artifacts(tmp_path / "a"), batch(tmp_path)
    x, bytes_of = np.load(data)["x"], []
    minbuild("export", made, "--out", tmp_path / "float.onnx")
    wanted = output(tmp_path / "float.onnx", x)
    for most in (0.1, 0.006, 0.003):
        out = tmp_path / f"{most}.onnx"
        done = minbuild(
            "export", made, "--out", out, "--quantize", "--batches", data, "--max-difference", most
        )
        assert done.code == 0, done.err
        assert difference(output(out, x), wanted) <= most * 1.001
        bytes_of.append(sum(a.nbytes for a in arrays_in(out).values()))
    assert bytes_of[0] < bytes_of[2]
    done = minbuild("export", made, "--out", out, "--quantize", "--batches", data, "--max-difference", 1e-9)
    assert done.code == 2 and "Allow more with --max-difference" in done.err


def test_adapters_are_merged_before(minbuild: Command, tmp_path: Path) -> None:
    made = artifacts(tmp_path / "a", lora=LoraOptions(("mid_weight", "head_weight"), 2, None))
    x = np.load(data := batch(tmp_path))["x"]
    out, merged = tmp_path / "small.onnx", tmp_path / "merged.onnx"
    assert minbuild("export", made, "--out", merged).code == 0
    done = minbuild("export", made, "--out", out, "--quantize", "--batches", data, "--max-difference", "0.02")
    assert done.code == 0, done.err
    assert not [n for n in arrays_in(out) if "lora" in n] and "3 of 3 layers" in done.out
    assert difference(output(out, x), output(merged, x)) <= 0.02


def test_normalisation_is_folded_exactly() -> None:
    graph = read_model(proto(), Path("model.onnx"))
    folded = with_folded_normalization(graph, {})
    made = next(node for node in folded.nodes if node.op_type == "Conv")
    assert made.outputs == ("b",) and len(folded.nodes) == len(graph.nodes) - 1
    found = Constants(folded, {})
    w = weights()
    factor = w["scale"].astype(np.float64) / np.sqrt(w["variance"].astype(np.float64) + 1e-5)
    np.testing.assert_allclose(
        found.float_array(made.inputs[1]), w["conv_weight"] * factor.reshape(-1, 1, 1, 1), rtol=1e-7
    )
    shift = (w["conv_bias"] - w["mean"]) * factor + w["shift"]
    np.testing.assert_allclose(found.float_array(made.inputs[2]), shift, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "change", ["outputs = ('c', 'y')", "another reader", "training"], ids=["output", "reader", "training"]
)
def test_normalisation_that_others_see_through_stays(change: str) -> None:
    text = NET
    if change == "another reader":
        text = NET.replace("r = Relu (b)", "d = Relu (c) r = Add (b, d)")
    elif change == "training":
        text = NET.replace("BatchNormalization (c", "BatchNormalization <training_mode = 1> (c")
    else:
        text = NET.replace("=> (float[n,5] y)", "=> (float[n,5] y, float[n,16,8,8] c)")
    graph = read_model(proto(text), Path("model.onnx"))
    assert with_folded_normalization(graph, {}).nodes == graph.nodes


@pytest.mark.parametrize("shape", [(7, 1), (7, 2), (7, 40), (7, 5, 3, 3)])
def test_no_two_products_exceed_16_bits(shape: tuple[int, ...]) -> None:
    weight = random(*shape)
    for pairs in (False, True):
        found = weight_range(weight, 0, pairs)
        q = quantized_weight(weight, found, 0).astype(np.int32).reshape(len(weight), -1)
        largest = np.sort(np.abs(q), 1)[:, -2:].sum(1)
        assert np.abs(q).max() <= 127 and (not pairs or 255 * largest.max() < 2**15)
        near = q * found.scale[:, None]
        step = found.scale[:, None] * (0.5 + 1e-6)
        assert (np.abs(near - weight.reshape(len(weight), -1)) <= step).all()
        if not pairs:
            assert (np.abs(q).max(1) == 127).all()


def test_ranges_hold_zero_exactly_and_are_no_worse_than_the_whole_range() -> None:
    for values in (random(1000), np.abs(random(1000)) + 1, -np.abs(random(1000)) - 1, np.zeros(3)):
        found = activation_range(values)
        zero, scale = float(found.zero), float(found.scale)
        assert found.zero.dtype == np.uint8 and 0 <= zero <= 255 and scale > 0
        q = np.clip(np.rint(values / scale) + zero, 0, 255)
        spread = max(values.max(), 0) - min(values.min(), 0)
        assert np.sqrt(np.square((q - zero) * scale - values).mean()) <= spread / 255 / np.sqrt(12) * 1.05


def test_a_channel_of_zeros_keeps_its_bias(minbuild: Command, tmp_path: Path) -> None:
    arrays = weights()
    arrays["head_weight"][2] = 0
    made, data = artifacts(tmp_path / "a", arrays=arrays), batch(tmp_path)
    done = minbuild(
        "export", made, "--out", tmp_path / "m.onnx", "--quantize", "--batches", data, "--max-difference=0.05"
    )
    assert done.code == 0 and "3 of 3" in done.out
    found = output(tmp_path / "m.onnx", np.load(data)["x"])
    np.testing.assert_allclose(found[:, 2], arrays["head_bias"][2], rtol=1e-4)


X = random(2, 3, 8, 8)
BAD = {
    "lacks": ({"z": X}, "lacks x. It has z; the model takes x."),
    "rank": ({"x": X[0]}, "'x' is of shape [3, 8, 8]; the model takes [n, 3, 8, 8]"),
    "size": ({"x": X[:, :, :7]}, "'x' is of shape [2, 3, 7, 8]; the model takes [n, 3, 8, 8], n is 2."),
    "nan": ({"x": np.where(X > 2, np.nan, X)}, "'x' has NaN or infinite elements"),
    "empty": ({"x": X[:0]}, "'x' has no elements"),
    "type": ({"x": X.astype(np.complex64)}, "'x' is complex64; the model takes float."),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_batches_are_refused_by_name(minbuild: Command, tmp_path: Path, name: str) -> None:
    arrays, reason = BAD[name]
    made, out = artifacts(tmp_path / "a"), tmp_path / "m.onnx"
    data = batch(tmp_path, **arrays)
    done = minbuild("export", made, "--out", out, "--quantize", "--batches", data)
    said = " ".join(done.err.split())
    assert done.code == 2 and reason in said and "batch0.npz" in said and not out.exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--quantize"], "no batches are given"),
        (["--batches", "x.npz"], "they are for --quantize"),
        (["--quantize", "--batches", "nowhere.npz"], "nowhere.npz: no such file"),
        (["--quantize", "--batches", "EMPTY"], "the folder holds no .npz file"),
        (["--quantize", "--batches", "x.npz", "--unmerged"], "Leave one"),
        (["--quantize", "--batches", "x.npz", "--max-difference", "-1"], "Write one such as 0.01"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    minbuild: Command, tmp_path: Path, options: list[str], reason: str
) -> None:
    made = artifacts(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    options = [str(tmp_path / "empty") if o == "EMPTY" else o for o in options]
    done = minbuild("export", made, "--out", tmp_path / "m.onnx", *options)
    assert done.code == 2 and reason in " ".join(done.err.split())


def test_models_without_layers_and_of_old_opsets_are_refused(minbuild: Command, tmp_path: Path) -> None:
    text = "<ir_version: 8, opset_import: ['' : 17]> m (float[n,4] x) => (float[n,4] y) { y = Mul (x, w) }"
    made = artifacts(tmp_path / "a", text.replace("'", '"'), {"w": random(4)})
    data = batch(tmp_path, x=random(2, 4))
    done = minbuild("export", made, "--out", tmp_path / "m.onnx", "--quantize", "--batches", data)
    assert done.code == 2 and "no Conv, Gemm or MatMul" in " ".join(done.err.split())
    text = text.replace("'", '"').replace("Mul", "MatMul").replace("17", "12")
    made = artifacts(tmp_path / "b", text, {"w": random(4, 4)})
    done = minbuild("export", made, "--out", tmp_path / "m.onnx", "--quantize", "--batches", data)
    assert done.code == 3 and "opset 12" in done.err


def test_parameters_that_are_not_finite_are_refused(minbuild: Command, tmp_path: Path) -> None:
    arrays = weights()
    arrays["mid_weight"][3, 4] = np.inf
    made, data = artifacts(tmp_path / "a", arrays=arrays), batch(tmp_path)
    done = minbuild("export", made, "--out", tmp_path / "m.onnx", "--quantize", "--batches", data)
    assert done.code == 2 and "becomes NaN or infinite" in " ".join(done.err.split())
