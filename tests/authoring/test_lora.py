"""Low-rank adapters: what trains, what is in the checkpoint, files of adapters, and merging."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from authored import differences, stepped
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from typer.testing import CliRunner

from minbuild.authoring import Recipe, Source, artifacts_of, make_artifacts, write_artifacts
from minbuild.authoring.recipe import LoraOptions
from minbuild.cli.main import app
from minbuild.errors import BadInput
from minbuild.frontend.adapter import read_adapter, write_adapter
from minbuild.frontend.artifacts import load_artifacts
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.frontend.onnx.reader import read_model
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.api import CheckpointState, Module, Optimizer
from minbuild.training.artifacts import LossType, generate_artifacts

RANDOM = np.random.default_rng(4)


def random(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


MODEL = """
    m (int64[n,5] ids) => (float[n,2,3] y) <float s = {0.02}, int8 zero = {0}> {
        e = Gather (table.weight, ids)
        c = Unsqueeze (e, one)
        conv = Conv <pads = [1, 1, 1, 1]> (c, conv.weight)
        q = Gather <axis = 2> (conv, zero_index)
        a = MatMul (q, attn.q.weight)
        w = DequantizeLinear (packed, s, zero)
        b = MatMul (a, w)
        t = Transpose <perm = [1, 0]> (attn.v.weight)
        v = MatMul (b, t)
        f = Reshape (v, rows)
        g = Gemm <transB = 1, alpha = 0.5> (f, head.weight, head.bias)
        y = Reshape (g, back)
    }"""
WEIGHTS = {
    "table.weight": random(7, 6),
    "conv.weight": random(2, 1, 3, 3),
    "one": np.array([1]),
    "zero_index": np.array(0),
    "attn.q.weight": random(6, 4),
    "packed": RANDOM.integers(-99, 99, (4, 4)).astype(np.int8),
    "attn.v.weight": random(5, 4),
    "rows": np.array([-1, 5]),
    "head.weight": random(3, 5),
    "head.bias": random(3),
    "back": np.array([-1, 2, 3]),
}
IDS, TARGET = RANDOM.integers(0, 7, (3, 5)), random(3, 2, 3)
ADAPTED = ("table", "conv", "attn.q", "packed", "attn.v", "head")


def parsed(text, weights, opset=17):
    """A model with dots in names, which ONNX's parser does not take."""
    written = re.sub(r"(?<=[a-zA-Z])\.(?=[a-zA-Z])", "__", text)
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {written}')
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [n.replace("__", ".") for n in names]
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    return proto


def source(text, weights, opset=17):
    proto, path = parsed(text, weights, opset), Path("model.onnx")
    return Source(read_model(proto, path), opset, path)


def model():
    return source(MODEL, WEIGHTS, 19)


def recipe(*weights, rank=2, alpha=None, **others):
    return Recipe(loss="mse", lora=LoraOptions(weights, rank, alpha), **others)


def test_only_adapters_train_and_stand_in_the_checkpoint():
    made = make_artifacts(model(), recipe("*"))
    data = made.files["checkpoint"]
    parameters = read_checkpoint(data).parameters
    assert {p.name for p in parameters} == {f"{n}.lora_{k}" for n in ADAPTED for k in "AB"}
    shapes = {p.name: p.shape for p in parameters}
    assert shapes["head.lora_A"] == (5, 2) and shapes["head.lora_B"] == (2, 3)
    assert shapes["attn.v.lora_A"] == (4, 2) and shapes["attn.v.lora_B"] == (2, 5)
    assert shapes["conv.lora_A"] == (2, 1, 3, 3) and shapes["conv.lora_B"] == (2, 2, 1, 1)
    assert len(data) <= sum(p.data.nbytes for p in parameters) + 96 * len(parameters) + 512
    assert not made.notes


def test_an_adapted_model_starts_as_the_model_and_gradients_are_right():
    plain = ReferenceTrainer(artifacts_of(model(), Recipe(loss="mse"), registry()))
    trainer = ReferenceTrainer(artifacts_of(model(), recipe("*", alpha=5), registry()))
    assert stepped(trainer, IDS, TARGET) == pytest.approx(stepped(plain, IDS, TARGET), rel=1e-6)
    for name in trainer.trained:
        trainer.parameters[name] = RANDOM.standard_normal(trainer.parameters[name].shape)
    assert max(differences(trainer, IDS, TARGET).values()) < 1e-5


def test_patterns_choose_layers_and_further_parameters_may_train():
    made = artifacts_of(model(), recipe("attn.*", train=("head.*",)), registry())
    names = {p.name for p in made.checkpoint.parameters}
    assert names == {*(f"attn.{n}.lora_{k}" for n in "qv" for k in "AB"), "head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("atn.q",), "no layer has such a weight. Did you mean attn.q?"),
        (("head.bias",), "An adapter goes beside a MatMul, Gemm, Gather or ungrouped convolution"),
        (("nothing*",), "There are: table.weight, conv.weight"),
    ],
)
def test_what_matches_no_layer_is_refused(options, reason):
    with pytest.raises(BadInput, match="--lora ") as caught:
        artifacts_of(model(), recipe(*options), registry())
    assert reason in str(caught.value)


def test_ranks_and_names_that_are_taken_are_refused():
    with pytest.raises(BadInput, match="--lora-rank 0: a rank is at least 1"):
        artifacts_of(model(), recipe("*", rank=0), registry())
    text = "m (float[n,2] x) => (float[n,2] y) { h = MatMul (x, w.lora_A) y = MatMul (h, w) }"
    twice = source(text, {"w": random(2, 2), "w.lora_A": random(2, 2)})
    with pytest.raises(BadInput, match="it has adapters already: w.lora_A"):
        artifacts_of(twice, recipe("w"), registry())


def run(*arguments) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Artifacts of the adapted model, and a checkpoint after five steps on the device."""
    folder = tmp_path_factory.mktemp("lora")
    write_artifacts(make_artifacts(model(), recipe("*", alpha=5)), folder)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.05)
    losses = []
    for _ in range(5):
        losses.append(float(module(IDS, TARGET)))
        optimizer.step()
        module.lazy_reset_grad()
    assert losses[-1] < 0.9 * losses[0]
    CheckpointState.save_checkpoint(state, folder / "trained")
    return folder


def outputs(path: Path, **inputs):
    return ReferenceEvaluator(onnx.load(path)).run(None, {"ids": IDS, **inputs})[0]


def test_export_merges_what_can_be_merged(trained, tmp_path):
    said = run("export", trained, "--checkpoint", trained / "trained", "--out", tmp_path / "merged.onnx")
    assert "packed: stays beside its layer" in said
    run(
        "export", trained, "--checkpoint", trained / "trained", "--out", tmp_path / "whole.onnx", "--unmerged"
    )
    merged, whole = (onnx.load(tmp_path / f"{n}.onnx") for n in ("merged", "whole"))
    there = {n for node in merged.graph.node for n in node.input if ".lora_" in n}
    assert there == {"packed.lora_A", "packed.lora_B"}
    assert len(merged.graph.node) < len(whole.graph.node) - 3 * (len(ADAPTED) - 1)
    wanted = outputs(tmp_path / "whole.onnx")
    np.testing.assert_allclose(outputs(tmp_path / "merged.onnx"), wanted, rtol=1e-4, atol=1e-4)
    plain = ReferenceTrainer(load_artifacts(trained))
    assert not np.allclose(outputs(tmp_path / "merged.onnx"), plain.eval_step(IDS, TARGET)[0], atol=1e-3)


def test_files_of_adapters(trained, tmp_path):
    file = tmp_path / "style.onnx_adapter"
    run("export", trained, "--checkpoint", trained / "trained", "--out", file)
    wanted = {p.name: p.data for p in read_checkpoint(trained / "trained").parameters}
    found = {p.name: p.data for p in read_adapter(file).parameters}
    assert set(found) == set(wanted)
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name])
    run("export", trained, "--checkpoint", file, "--out", tmp_path / "m.onnx")
    run("export", trained, "--checkpoint", trained / "trained", "--out", tmp_path / "n.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "n.onnx").read_bytes()
    run("export", trained, "--out", tmp_path / "base.onnx", "--unmerged")  # adapters that have not trained
    inputs = {i.name for i in onnx.load(tmp_path / "base.onnx").graph.input}
    assert inputs == {"ids", *wanted}
    np.testing.assert_allclose(
        outputs(tmp_path / "base.onnx", **found), outputs(tmp_path / "m.onnx"), rtol=1e-4, atol=1e-4
    )


def test_damaged_files_of_adapters_are_refused(trained, tmp_path):
    data = write_adapter(read_checkpoint(trained / "trained"))
    for broken in (b"", data[:40], data[:7] + b"X" + data[8:], data[: len(data) // 2]):
        (tmp_path / "x.onnx_adapter").write_bytes(broken)
        with pytest.raises(BadInput, match=r"x\.onnx_adapter: "):
            read_adapter(tmp_path / "x.onnx_adapter")


def test_adapters_of_another_model_are_refused(trained, tmp_path):
    artifacts = artifacts_of(model(), recipe("head"), registry())
    data = write_adapter(artifacts.checkpoint)
    (tmp_path / "x.onnx_adapter").write_bytes(data.replace(b"head.lora_A", b"tail.lora_A"))
    result = CliRunner().invoke(
        app,
        [
            "export",
            str(trained),
            "--checkpoint",
            str(tmp_path / "x.onnx_adapter"),
            "-o",
            str(tmp_path / "m.onnx"),
        ],
    )
    assert result.exit_code == 2 and "the model has no tail.lora_A" in result.output


def test_python_makes_the_same(tmp_path):
    text = "m (float[n,4] x) => (float[n,3] y) { y = MatMul (x, fc.weight) }"
    proto = parsed(text, {"fc.weight": random(4, 3)})
    generate_artifacts(proto, loss=LossType.MSELoss, artifact_directory=tmp_path, lora=["fc"], lora_rank=1)
    parameters = load_artifacts(tmp_path).checkpoint.parameters
    assert [(p.name, p.shape) for p in parameters] == [("fc.lora_A", (4, 1)), ("fc.lora_B", (1, 3))]


def test_adapters_that_a_model_has_are_noticed():
    text = """m (float[n,3] x) => (float[n,3] y) {
        h = MatMul (x, w)
        l = MatMul (x, q.lora_A.default.weight)
        y = Add (h, l)
    }"""
    peft = source(text, {"w": random(3, 3), "q.lora_A.default.weight": random(3, 3)})
    assert (
        "To train adapters only, add --train '*.lora_*'"
        in artifacts_of(peft, Recipe(loss="mse"), registry()).notes[0]
    )
    made = artifacts_of(peft, Recipe(loss="mse", train=("*.lora_*",)), registry())
    assert [p.name for p in made.checkpoint.parameters] == ["q.lora_A.default.weight"] and not made.notes
