"""`minbuild artifacts`: its texts, and artifacts whose frozen parameters come from elsewhere."""

from __future__ import annotations

import onnx
import pytest
from authored import FORWARD, uniform
from commands import command_fixture  # noqa: F401
from onnx.reference import ReferenceEvaluator

from minbuild.authoring import Recipe, make_artifacts, write_artifacts
from minbuild.training.api import CheckpointState, Module


@pytest.fixture(name="model")
def model_fixture(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(FORWARD["dense"].build()[1], path)
    return path


def test_the_command_says_what_was_removed(model, minbuild, tmp_path):
    out = tmp_path / "made"
    assert minbuild("artifacts", model, "--out", out).code == 0
    said = minbuild("artifacts", model, "--out", out, "--optimizer", "none")
    assert said.code == 0 and f"{out / 'optimizer_model.onnx'}  removed: it was of an earlier set" in said.out


def test_the_command_says_everything_it_cannot_read(model, minbuild, tmp_path):
    said = minbuild(
        "artifacts", model, "--out", tmp_path / "made", "--class-weights", ",", "--betas", "1,2,3"
    )
    assert said.code == 2
    assert (
        "--class-weights ,: no numbers" in said.err and "--betas 1,2,3: two numbers are expected" in said.err
    )


def test_a_model_that_is_not_there(minbuild, tmp_path):
    said = minbuild("artifacts", tmp_path / "gone.onnx", "--out", tmp_path / "made")
    assert said.code == 2 and "gone.onnx: no such file. Give the ONNX file of the model." in said.err


def test_a_loss_that_is_no_number_is_bad_input(model, minbuild, tmp_path):
    said = minbuild("artifacts", model, "--out", tmp_path / "made", "--loss", "none")
    assert said.code == 2 and "Choose a loss with --loss, or another output with --loss-output." in said.err


def test_the_help_teaches(minbuild):
    said = minbuild("artifacts", "--help")
    assert said.code == 0
    for words in (
        "Examples",
        "--train last:1",
        "--loss none",
        "Loss",
        "Optimizer",
        "Parameters",
        "Checks",
        "Files",
    ):
        assert words in said.out, words


def test_the_frozen_rest_may_come_from_another_checkpoint(model, minbuild, tmp_path):
    out = tmp_path / "dist"
    said = minbuild(
        "reduce",
        model,
        "--loss",
        "mse",
        "--train",
        "last:1",
        "--frozen",
        "rest",
        "--out",
        out,
        "--no-analysis",
    )
    assert said.code == 0, said.err
    other = onnx.load(model)
    for tensor in other.graph.initializer:
        if tensor.name == "fc1.weight":
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * -2, tensor.name)
            )
    path = tmp_path / "other.onnx"
    onnx.save(other, path)
    made = make_artifacts(path, Recipe("mse", train=("last:1",), frozen=("rest",)))
    write_artifacts(made, tmp_path / "other")
    x, target = uniform((4, 12), (4, 5))
    losses = []
    for checkpoint, forward in (
        (out / "model" / "checkpoint", model),
        (tmp_path / "other" / "checkpoint", path),
    ):
        module = Module(out, CheckpointState.load_checkpoint(checkpoint))
        (y,) = ReferenceEvaluator(str(forward)).run(None, {"input": x})
        losses.append(((y - target) ** 2).mean())
        assert float(module(x, target)) == pytest.approx(losses[-1], rel=1e-5)
    assert abs(losses[0] - losses[1]) > 1e-3
