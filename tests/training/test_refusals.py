"""Wrong batches are refused in words: which input is what, and what the model takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from minbuild.authoring import Recipe, generate_artifacts
from minbuild.authoring.losses import LossOptions
from minbuild.training.api import CheckpointState, Module
from minbuild.training.library import TrainerError

X, LABELS = np.zeros((4, 3), np.float32), np.array([0, 4, -1, 2])


@pytest.fixture(scope="module", params=["cross-entropy", "nll"])
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Module:
    """A model of five classes that ignores the label -1."""
    folder = tmp_path_factory.mktemp("labels")
    body = "y = MatMul (x, w)" if request.param == "cross-entropy" else "h = MatMul (x, w) y = LogSoftmax (h)"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[N,3] x) => (float[N,5] y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, folder / "model.onnx")
    recipe = Recipe(loss=request.param, loss_options=LossOptions(ignore_index=-1))
    generate_artifacts(folder / "model.onnx", folder, recipe)
    return opened(folder)


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
