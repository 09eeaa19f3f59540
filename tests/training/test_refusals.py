"""Wrong batches are refused in words: which input is what, and what the model takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from minbuild.authoring import Recipe, generate_artifacts
from minbuild.authoring.losses import LossOptions
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.training.api import CheckpointState, Module
from minbuild.training.library import TrainerError
from minbuild.training.refusals import BAD_SHAPE, refusal

X, LABELS = np.zeros((4, 3), np.float32), np.array([0, 4, -1, 2])


@pytest.fixture(scope="module", params=["cross-entropy", "nll"])
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Module:
    """A model of five classes that ignores the label -1."""
    return opened(made(tmp_path_factory.mktemp("labels"), request.param))


def made(folder: Path, loss: str) -> Path:
    """The artifacts of that model, in `folder`."""
    body = "y = MatMul (x, w)" if loss == "cross-entropy" else "h = MatMul (x, w) y = LogSoftmax (h)"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[N,3] x) => (float[N,5] y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, folder / "model.onnx")
    recipe = Recipe(loss=loss, loss_options=LossOptions(ignore_index=-1))
    generate_artifacts(folder / "model.onnx", folder, recipe)
    return folder


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    return compile_model(made(tmp_path_factory.mktemp("sizes"), "cross-entropy"), {}, {})


def opened(folder: Path) -> Module:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")


WRONG = {
    "type": (
        (X.astype(np.float64), LABELS),
        "input 'x' is float64, the model takes float32. Convert it with astype",
    ),
    "labels' type": ((X, LABELS.astype(np.int32)), "is int32, the model takes int64"),
    "size": ((X[:, :2], LABELS), r"input 'x' has the shape \[4, 2\], the model takes \[.+, 3\]\."),
    "rank": ((X[0], LABELS), r"input 'x' has the shape \[3\], the model takes \[.+, 3\]\."),
    "count": ((X,), "1 input was given, the model takes 2: x, labels"),
    "batch": ((X, LABELS[:3]), "has 3 along '.+', input 'x' has 4"),
    "empty": ((X[:0], LABELS[:0]), "input 'x' is empty along"),
    "label": ((X, LABELS + 1), r"label 5 is outside 0\.\.4 \(sample 1 of input 'labels'\)"),
    "negative label": ((X, LABELS - 2), r"label -2 is outside 0\.\.4 \(sample 0 of input 'labels'\)"),
}


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_refusal_says_what_was_done(module: Module, wrong: str, evaluates: bool) -> None:
    inputs, said = WRONG[wrong]
    module.train(not evaluates)
    with pytest.raises(TrainerError, match=said):
        module(*inputs)
    assert np.isfinite(module(X, LABELS)), "the session goes on"


def test_an_ignored_label_is_not_named(module: Module) -> None:
    with pytest.raises(TrainerError, match=r"label 9 .*\(sample 3"):
        module(X, np.array([-1, -1, 0, 9]))


def test_sizes_that_a_plan_does_not_count_are_named(compiled: CompiledModel) -> None:
    """The arrays share one number: only their shapes count."""
    x, labels = (np.broadcast_to(a, (2**30, *a.shape)) for a in (np.zeros(3, np.float32), np.int64(1)))
    name = next(iter(compiled.largest))
    said = refusal(compiled.plan_bytes, 0, BAD_SHAPE, (x, labels))
    assert f"more than this plan counts: '{name}' is 1,073,741,824, planned for 32." in said
    assert said.endswith(f"Reduce with --max-dim {name}=1073741824.")
    assert refusal(compiled.plan_bytes, 0, BAD_SHAPE, (x[:32], labels[:32])) == ""
