"""Models for inference out of training artifacts: which outputs they have, the command, and packages that export."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from case_sets import GOLDEN, SHARED, load
from commands import Command, command_fixture  # noqa: F401

from minbuild.errors import BadInput
from minbuild.frontend.artifacts import load_artifacts
from minbuild.ir import ElementType, Graph, Node, TensorType
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import with_components
from minbuild.planning.inference_export import default_outputs, prune
from minbuild.training.api import CheckpointState, Module, Optimizer

RECORDED = [p.parent for p in sorted(SHARED.glob("*/meta.json"))]


@pytest.mark.parametrize("folder", RECORDED, ids=lambda f: f.name)
def test_default_outputs_are_those_of_the_forward_model(folder):
    bundle = load_artifacts(folder)
    assert bundle.evaluation is not None
    found = default_outputs(bundle.evaluation, [p.name for p in bundle.checkpoint.parameters])
    wanted = [o.name for o in onnx.load(folder / "forward.onnx", load_external_data=False).graph.output]
    assert sorted(found) == sorted(wanted)


def graph(*nodes: tuple[str, list[str], str], inputs: str) -> Graph:
    made = tuple(Node(op, "", 17, out, tuple(reads), (out,), {}) for op, reads, out in nodes)
    types = {name: TensorType(ElementType.FLOAT, ("n",)) for name in inputs.split()}
    return Graph("eval_model.onnx", made, types, {}, ("loss",), {})


def test_two_heads_are_two_outputs():
    heads = graph(
        ("Mul", ["x", "w"], "trunk"),
        ("Mul", ["trunk", "v1"], "one"),
        ("Mul", ["trunk", "v2"], "two"),
        ("Sub", ["one", "t1"], "d1"),
        ("Sub", ["two", "t2"], "d2"),
        ("Add", ["d1", "d2"], "loss"),
        inputs="x t1 t2 w v1 v2",
    )
    assert default_outputs(heads, ["w", "v1", "v2"]) == ("one", "two")


def test_other_outputs_count_where_no_label_is_needed_for_them():
    """A feature is an output; what labels or no parameters take part in is none."""
    model = graph(
        ("Mul", ["x", "w"], "feature"),
        ("Mul", ["feature", "v"], "score"),
        ("Sub", ["score", "t"], "loss"),
        ("Equal", ["score", "t"], "accuracy"),
        ("Exp", ["x"], "brightness"),
        inputs="x t w v",
    )
    model = replace(model, outputs=("loss", "accuracy", "brightness", "feature"))
    assert default_outputs(model, ["w", "v"]) == ("score", "feature")


def test_a_loss_may_use_its_scores_twice():
    """As binary cross-entropy of logits does."""
    loss = graph(
        ("Mul", ["x", "w"], "score"),
        ("Exp", ["score"], "e"),
        ("Mul", ["score", "t"], "m"),
        ("Sub", ["e", "m"], "loss"),
        inputs="x t w",
    )
    assert default_outputs(loss, ["w"]) == ("score",)


def test_labels_that_a_decoder_reads_meet_its_scores_behind_all_parameters():
    """Scores of the next word, from the words before it; the loss may have parameters of its own."""
    nodes = (
        ("Mul", ["x", "w"], "encoded"),
        ("Mul", ["t", "w"], "embedded"),
        ("Add", ["encoded", "embedded"], "attended"),
        ("Mul", ["attended", "v"], "score"),
        ("Sub", ["score", "t"], "difference"),
        ("Neg", ["difference"], "loss"),
    )
    assert default_outputs(graph(*nodes, inputs="x t w v"), ["w", "v"]) == ("score",)
    weighted = graph(
        ("Mul", ["x", "w"], "y"), ("Sub", ["y", "t"], "d"), ("Mul", ["d", "v"], "loss"), inputs="x t w v"
    )
    assert default_outputs(weighted, ["w", "v"]) == ("y",)


def test_outputs_that_cannot_be_told_must_be_named():
    itself = graph(("Mul", ["x", "w"], "y"), ("Sub", ["y", "x"], "loss"), inputs="x w")
    with pytest.raises(BadInput, match="--export-output"):
        default_outputs(itself, ["w"])
    assert prune(itself, ("y",)).inputs.keys() == {"x", "w"}
    with pytest.raises(BadInput, match="no node makes 'x'"):
        prune(itself, ("x",))


def test_the_command_writes_the_model_with_trained_parameters(minbuild: Command, tmp_path: Path) -> None:
    folder, out = GOLDEN / "dense", tmp_path / "model.onnx"
    done = minbuild("export", folder, "--checkpoint", folder / "checkpoint_final_opt", "--out", out)
    assert done.code == 0 and "outputs: output" in done.out
    model = onnx.load(out)
    onnx.checker.check_model(model, full_check=True)
    held = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    final = load(folder).recorded("param_final")
    assert final and all(np.array_equal(held[name], data) for name, data in final.items())
    assert [o.name for o in model.graph.output] == ["output"]


def test_the_command_says_what_is_wrong(minbuild: Command, tmp_path: Path) -> None:
    failed = minbuild("export", GOLDEN / "dense", "--out", tmp_path / "m.onnx", "--output", "nothing")
    assert failed.code == 2 and "no node makes 'nothing'" in failed.err
    other = GOLDEN / "conv" / "checkpoint"
    failed = minbuild("export", GOLDEN / "dense", "--out", tmp_path / "m.onnx", "--checkpoint", other)
    assert failed.code == 2 and "Give one of this model" in failed.err and not (tmp_path / "m.onnx").exists()


def test_parts_that_there_are_not_are_named(minbuild: Command, tmp_path: Path) -> None:
    failed = minbuild("reduce", GOLDEN / "dense", "--out", tmp_path / "dist", "--with", "export,nothing")
    assert failed.code == 2 and "Choose from properties, buffers, export" in failed.err


def test_asking_for_outputs_asks_for_the_export() -> None:
    model = with_components(compile_model(GOLDEN / "dense", {}, {}), (), ["output"])
    assert model.components == {"export"} and model.export_template is not None
    assert with_components(model, ["buffers, properties"]).components == {"buffers", "properties"}
    with pytest.raises(BadInput, match="no node makes"):
        with_components(model, ["export"], ["nothing"])


def test_a_package_exports_from_python(package, tmp_path: Path) -> None:
    folder, out = tmp_path / "dist", tmp_path / "model.onnx"
    shutil.copytree(package("dense"), folder)
    model = with_components(compile_model(GOLDEN / "dense", {}, {}), ["export"])
    assert model.export_template is not None
    (folder / "model/inference.template").write_bytes(model.export_template)
    state = CheckpointState.load_checkpoint(folder / "model/checkpoint")
    module = Module(folder, state)
    module(*load(GOLDEN / "dense").batch(0))
    Optimizer(None, module).step()
    module.export_model_for_inferencing(out, ["output"])
    held = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(out).graph.initializer}
    for name, parameter in state.parameters:
        assert np.array_equal(held[name], parameter.data)
    with pytest.raises(BadInput, match="exports output, not other.*--export-output other"):
        module.export_model_for_inferencing(out, ["other"])
    (folder / "model/inference.template").unlink()
    with pytest.raises(BadInput, match="--with export"):
        module.export_model_for_inferencing(out, ["output"])
