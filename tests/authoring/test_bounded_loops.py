"""Loops that run as often as an input says, up to the largest number that a recipe gives; and those whose end depends
on parameters alone."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
import trainers
from authored import differences, source, stepped
from beside_interpreter import Beside, distance, farthest
from commands import command_fixture  # noqa: F401
from planned_models import compiled

from minbuild.authoring import Recipe, Source, artifacts_of
from minbuild.authoring.bounded_loops import bounding_inputs
from minbuild.errors import BadInput, Unsupported
from minbuild.ops import registry
from minbuild.planning.kernel_selection import contents_of
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import TRAIN, TrainerError

REGISTRY, MOST = registry(), 6
random = np.random.default_rng(0)
WEIGHTS = {
    "W": random.standard_normal((3, 4)).astype(np.float32),
    "R": (random.standard_normal((4, 4)) * 0.45).astype(np.float32),
}
NUMBERS = {n: np.array(v) for n, v in (("zero", 0), ("one", 1), ("yes", True), ("first", [0]))}
X, TARGET = (random.standard_normal(s).astype(np.float32) for s in ((2, 3), (2, 4)))
COUNTED = """
    m (float[2,3] x, int64 n) => (float[2,4] out) {
        start = MatMul (x, W)
        out = Loop (n, , start) <body = round (int64 i, bool going, float[2,4] h) => (bool on, float[2,4] k) {
            a = MatMul (h, R) k = Tanh (a) on = Identity (going)
        }>
    }"""
SLICED = """
    m (float[2,3] x, int32[1] n) => (float[2,4] out) {
        start = MatMul (x, W)
        many = Cast <to = 7> (n)
        last, all = Loop (many, yes, start) <
            body = round (int64 i, bool going, float[2,4] h) => (bool on, float[2,4] k, float[2,4] y) {
                a = MatMul (h, R) k = Tanh (a) on = Identity (going) y = Exp (k)
            }>
        sum = ReduceSum <keepdims = 0> (all, first)
        out = Add (last, sum)
    }"""
COMPARED = """
    m (float[2,3] x, int64 n) => (float[2,4] out) {
        start = MatMul (x, W)
        out, count = Loop (, yes, start, zero) <
            body = round (int64 i, bool going, float[2,4] h, int64 j) => (bool on, float[2,4] k, int64 j2) {
                a = MatMul (h, R) k = Tanh (a) j2 = Add (j, one) on = Less (j2, n)
            }>
    }"""
MODELS = {"counted": COUNTED, "sliced": SLICED, "compared": COMPARED}


def model_of(name: str) -> Source:
    return source(MODELS[name], {**WEIGHTS, **{n: a for n, a in NUMBERS.items() if n in MODELS[name]}})


def feeds(name: str, rounds: int) -> tuple[np.ndarray, ...]:
    return X, np.array([rounds], np.int32) if name == "sliced" else np.array(rounds), TARGET


def meant(name: str, rounds: int) -> np.ndarray:
    h = X.astype(np.float64) @ WEIGHTS["W"]
    slices = np.zeros_like(h)
    for _ in range(max(rounds, 1) if name == "compared" else rounds):
        h = np.tanh(h @ WEIGHTS["R"])
        slices += np.exp(h)
    return h + slices if name == "sliced" else h


def recipe(**largest: int) -> Recipe:
    return Recipe(loss="mse", optimizer="sgd", largest=largest)


@pytest.mark.parametrize("name", MODELS)
def test_an_input_says_how_many_rounds_run(name, tmp_path):
    made = artifacts_of(model_of(name), recipe(n=MOST), REGISTRY)
    for rounds in (0, 1, 4, MOST):
        loss = stepped(ReferenceTrainer(made), *feeds(name, rounds))
        assert loss == pytest.approx(((meant(name, rounds) - TARGET) ** 2).mean(), rel=1e-6)
        assert max(differences(ReferenceTrainer(made), *feeds(name, rounds)).values()) < 1e-6
    model = compiled(made, REGISTRY)
    beside = Beside(made, model, trainers.library_of(contents_of([model]), REGISTRY, tmp_path), 1)
    for rounds in (1, 4, 0, MOST):
        found, wanted, _ = beside.step(feeds(name, rounds))
        assert max(map(distance, found, wanted)) < 1e-6
    with pytest.raises(TrainerError, match="value out of range"):
        beside.session.run(TRAIN, feeds(name, MOST + 1))


@pytest.mark.unit
def test_a_number_of_rounds_without_a_bound_is_refused_with_the_options():
    for name in ("counted", "compared"):
        with pytest.raises(Unsupported, match=r"--max-dim NAME=\.\.\."):
            artifacts_of(model_of(name), recipe(), REGISTRY)


@pytest.mark.unit
@pytest.mark.parametrize(
    "largest, reason",
    [
        ({"m": 4}, "--max-dim m=4: model.onnx: no input of one whole number, which would say .* runs: n"),
        ({"x": 4}, "Free dimensions stay free in artifacts"),
    ],
)
def test_other_names_are_refused(largest, reason):
    with pytest.raises(BadInput, match=reason):
        artifacts_of(model_of("counted"), recipe(**largest), REGISTRY)


@pytest.mark.unit
def test_an_input_that_counts_no_rounds_is_refused():
    text = "m (float[2,3] x, int64 n) => (float[2,4] y) { f = Cast <to = 1> (n) z = Mul (x, f) y = MatMul (z, W) }"
    model = source(text, {"W": WEIGHTS["W"]})
    assert bounding_inputs(model.graph) == ("n",)
    with pytest.raises(BadInput, match="no loop of the model runs as often as the input 'n' says"):
        artifacts_of(model, recipe(n=4), REGISTRY)


def test_commands_take_the_bound(minbuild, tmp_path):
    path = tmp_path / "model.onnx"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {COUNTED}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in WEIGHTS.items())
    onnx.save(model, path)
    said = minbuild("artifacts", path, "--out", tmp_path / "made", "--loss", "mse")
    assert said.code == 3 and "--max-dim NAME=..." in said.err
    said = minbuild("artifacts", path, "--out", tmp_path / "made", "--loss", "mse", "--max-dim", "n=4")
    assert said.code == 0, said.err
    said = minbuild(
        *("reduce", path, "--out", tmp_path / "dist", "--loss", "mse", "--max-dim", "n=4", "--no-analysis")
    )
    assert said.code == 0, said.err


# ------------------------------------------------------------------------------- ends that depend on parameters

HALVED = """
    m (float[2,3] x) => (float[2,4] out) {
        start = MatMul (x, W)
        last, factor, all = Loop (most, yes, start, scale) <
            body = round (int64 i, bool going, float[2,4] h, float[1] s) =>
                    (bool on, float[2,4] k, float[1] s2, float[2,4] y) {
                a = MatMul (h, R) k = Tanh (a) y = Mul (k, s)
                s2 = Mul (s, half)
                size = ReduceSum <keepdims = 0> (s2)
                on = Greater (size, limit)
            }>
        mean = ReduceMean <axes = [0], keepdims = 0> (all)
        out = Add (mean, last)
    }"""


def halved(scale: float) -> np.ndarray:
    h, slices = X.astype(np.float64) @ WEIGHTS["W"], []
    while len(slices) < 9:
        h = np.tanh(h @ WEIGHTS["R"])
        slices.append(h * scale)
        scale /= 2
        if not scale > 0.3:
            break
    return np.mean(slices, axis=0) + h


def test_slices_of_a_loop_that_ends_by_a_trained_parameter_are_read(tmp_path):
    values = {**WEIGHTS, "scale": np.array([3], np.float32), "half": np.array([0.5], np.float32)}
    values |= {"limit": np.array(0.3, np.float32), "most": np.array(9), "yes": np.array(True)}
    made = artifacts_of(
        source(HALVED, values), Recipe("mse", optimizer="sgd", train=("W", "R", "scale")), REGISTRY
    )
    trainer = ReferenceTrainer(made)
    for scale in (0.1, 1.0, 3.0, 1e6):
        trainer.parameters["scale"] = np.array([scale])
        wanted = ((halved(scale) - TARGET) ** 2).mean()
        assert stepped(trainer, X, TARGET) == pytest.approx(wanted, rel=1e-6)
        if scale < 1e6:  # else steps of differences are lost in rounding
            assert max(differences(trainer, X, TARGET).values()) < 1e-5
    assert farthest({"halved": made}, {"halved": [(X, TARGET)]}, tmp_path)["halved"] < 1e-6
