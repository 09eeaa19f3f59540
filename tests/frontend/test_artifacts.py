"""minbuild.frontend.artifacts: folders become Bundles, and whatever is wrong with them is told completely."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from artifact_folders import CASES, FILES, GOLDEN, SETS, edit, failure, rewrite
from onnx import helper, numpy_helper

from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.artifacts import load_artifacts
from minbuild.frontend.files import _read_version
from minbuild.frontend.onnx.reader import read_graph
from minbuild.ir import ElementType, OptimizerGroup
from minbuild.ir.dims import symbol

# ------------------------------------------------------------------------------------------ good folders


@pytest.mark.parametrize("path", SETS, ids=lambda p: p.name)
def test_golden_sets_load(path):
    loaded = load_artifacts(path)
    form = "ort" if path.name.endswith("_ort") else "onnx"
    assert loaded.training.source == f"training_model.{form}"
    assert loaded.evaluation is not None and loaded.optimizer is not None
    assert sorted(loaded.digests) == sorted(f.replace("onnx", form) for f in FILES)
    for p in loaded.checkpoint.parameters:
        assert loaded.training.inputs[p.name].shape == p.shape
    for g in (loaded.training, loaded.evaluation, loaded.optimizer):
        assert all(n.name and n.version for n in g.nodes)
    assert set(loaded.optimizer.sequences) >= {"params", "gradients"}


@pytest.mark.skipif(not CASES.is_dir(), reason="the larger cases are not here")
def test_every_larger_case_loads():
    for path in sorted(p for p in CASES.iterdir() if p.is_dir()):
        assert load_artifacts(path).training.nodes, path.name


def test_nodes_carry_plain_values_and_versions():
    training = load_artifacts(GOLDEN / "dense").training
    gemm = next(n for n in training.nodes if n.op_type == "Gemm")
    assert (gemm.domain, gemm.version, gemm.title) == ("", 17, "Gemm")
    assert gemm.attributes["alpha"] == 1.0 and gemm.attributes["transB"] == 1
    accumulate = next(n for n in training.nodes if n.op_type == "InPlaceAccumulatorV2")
    assert (accumulate.domain, accumulate.version) == ("com.microsoft", 1)
    assert training.inputs["input"].shape == (symbol("batch"), 12)
    assert training.inputs["labels"].element == ElementType.INT64


def test_any_prefix_and_unrelated_files(folder):
    for name in FILES:
        (folder / name).rename(folder / f"my_{name}")
    (folder / "notes.txt").write_text("hello")
    (folder / "forward.onnx").write_bytes(b"not looked at")
    (folder / "my_checkpoint_final").mkdir()
    assert load_artifacts(folder).training.source == "my_training_model.onnx"


def test_evaluation_and_optimizer_are_optional(folder):
    (folder / "eval_model.onnx").unlink()
    (folder / "optimizer_model.onnx").unlink()
    loaded = load_artifacts(folder)
    assert loaded.evaluation is None and loaded.optimizer is None


def test_nominal_checkpoint_takes_shapes_from_the_graph(folder):
    rewrite(folder, lambda c: replace(c, nominal=True))
    full, loaded = load_artifacts(GOLDEN / "dense"), load_artifacts(folder)
    assert loaded.checkpoint.nominal
    assert [p.shape for p in loaded.checkpoint.parameters] == [p.shape for p in full.checkpoint.parameters]
    assert all(p.data is None for p in loaded.checkpoint.parameters)
    (folder / "checkpoint").rename(folder / "nominal_checkpoint")
    assert load_artifacts(folder).checkpoint.nominal


def test_normalization_in_eval_models_is_repaired_and_said_so():
    loaded = load_artifacts(GOLDEN / "residual")
    assert loaded.evaluation is not None
    norms = [n for n in loaded.evaluation.nodes if n.op_type == "BatchNormalization"]
    assert norms and all(len(n.outputs) == 1 for n in norms)
    assert len(loaded.notes) == 1 and f"{len(norms)} BatchNormalization" in loaded.notes[0]
    raw = read_graph((GOLDEN / "residual/eval_model.onnx").read_bytes(), Path("eval_model.onnx"))
    assert sum(len(n.outputs) for n in raw.nodes if n.op_type == "BatchNormalization") == 3 * len(norms)


# ------------------------------------------------------------------------------------------ bad folders


def test_large_weights_that_both_models_have_are_in_memory_once(folder):
    """Frozen weights stand in the training and in the evaluation model."""
    weight = np.random.default_rng(0).standard_normal((128, 200)).astype(np.float32)
    other = weight.copy()
    other[3, 4] += 1

    def frozen(arrays):
        def change(model):
            for name, array in arrays.items():
                model.graph.initializer.append(numpy_helper.from_array(array, name))
                model.graph.node.append(helper.make_node("Identity", [name], [name + "_out"]))

        return change

    edit(folder / "training_model.onnx", frozen({"same": weight, "changed": weight}))
    edit(folder / "eval_model.onnx", frozen({"same": weight, "changed": other}))
    loaded = load_artifacts(folder)
    training, evaluation = loaded.training.initializers, loaded.evaluation.initializers
    assert evaluation["same"] is training["same"]
    assert np.array_equal(evaluation["changed"], other) and np.array_equal(training["changed"], weight)


def test_large_weights_stay_in_a_large_model_file(folder, monkeypatch):
    path = folder / "training_model.onnx"
    weight = np.random.default_rng(0).standard_normal((128, 200)).astype(np.float32)

    def change(model):
        model.graph.initializer.append(numpy_helper.from_array(weight, "frozen"))
        model.graph.node.append(helper.make_node("Identity", ["frozen"], ["frozen_out"]))

    edit(path, change)
    small = load_artifacts(folder)
    for module in ("ir.mapped", "frontend.onnx.large_files"):
        monkeypatch.setattr(f"minbuild.{module}.LEAST_IN_PIECES", weight.nbytes)
    _read_version.cache_clear()  # of the small one
    large = load_artifacts(folder)
    assert large.digests == small.digests and large.training.nodes == small.training.nodes
    held, read = large.training.initializers["frozen"], small.training.initializers["frozen"]
    assert isinstance(held, np.memmap) and not isinstance(read, np.memmap)
    assert np.array_equal(held, weight) and np.array_equal(read, weight)


def test_no_folder_and_no_artifacts(tmp_path):
    assert "no such folder" in failure(tmp_path / "missing")
    (tmp_path / "file").write_text("x")
    assert "this is a file" in failure(tmp_path / "file")
    assert "no *training_model.onnx and *checkpoint here" in failure(tmp_path)
    (tmp_path / "training_model.ort").write_text("x")
    assert "no checkpoint beside training_model.ort" in failure(tmp_path)


def test_several_sets_in_one_folder_are_listed(folder):
    shutil.copy(folder / "training_model.onnx", folder / "b_training_model.onnx")
    assert "several sets of artifacts: b_training_model.onnx, training_model.onnx" in failure(folder)


def test_missing_checkpoint(folder):
    (folder / "checkpoint").unlink()
    assert "no checkpoint beside training_model.onnx" in failure(folder)


def test_ort_files_say_what_onnx_files_say():
    """ONNX Runtime fused two pairs of nodes and left the rest alone."""
    converted, original = (load_artifacts(GOLDEN / n).training for n in ("dense_ort", "dense"))
    assert dict(converted.inputs) == dict(original.inputs)
    assert sorted(converted.outputs) == sorted(original.outputs)
    fused = [n for n in converted.nodes if n.op_type == "FusedGemm"]
    assert {n.attributes["activation"] for n in fused} == {"Relu"}
    assert len(converted.nodes) == len(original.nodes) - len(fused) - 2  # and two Identity nodes are gone


def test_damaged_ort_files_are_refused_or_read(tmp_path):
    """Whatever the bytes are: an answer or one of our own errors."""
    for path in (GOLDEN / "dense_ort").iterdir():
        shutil.copy(path, tmp_path)
    target, random_bytes = tmp_path / "training_model.ort", random.Random(8)
    whole = target.read_bytes()
    target.write_bytes(whole[:4000])
    assert "not a readable .ort file" in failure(tmp_path)
    target.write_bytes(whole.replace(b"6\0\0\0", b"4\0\0\0", 1))
    assert "format version is '4'" in failure(tmp_path)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(4):
            data[random_bytes.randrange(8, len(data))] = random_bytes.randrange(256)
        target.write_bytes(data)
        try:
            load_artifacts(tmp_path)
        except (BadInput, Unsupported) as error:
            assert str(error)


@pytest.mark.parametrize("name", FILES)
def test_damage_in_each_file(folder, name):
    path, data = folder / name, (folder / name).read_bytes()
    path.write_bytes(b"")
    assert f"{path}: the file is empty" in failure(folder)
    path.unlink()
    path.mkdir()
    assert f"{path}: this is a directory" in failure(folder)
    path.rmdir()
    for length in (1, 7, 40, len(data) // 2, len(data) * 9 // 10):
        path.write_bytes(data[:length])
        assert str(path) in failure(folder)
    dice = random.Random(0)
    for size in [*range(1, 60), 1000, 5000]:
        path.write_bytes(dice.randbytes(size))
        assert str(path) in failure(folder)


@pytest.mark.parametrize("name", FILES)
def test_no_permission_to_read(folder, name, monkeypatch):
    def deny(self):
        if self.name == name:
            raise PermissionError(13, "Permission denied")
        return original(self)

    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", deny)
    assert f"{folder / name}: no permission to read it" in failure(folder)


def test_flipped_bits_never_crash(folder):
    dice = random.Random(2)
    for name in FILES[:3]:
        path, data = folder / name, (folder / name).read_bytes()
        for _ in range(150):
            broken = bytearray(data)
            for _ in range(dice.randint(1, 3)):
                broken[dice.randrange(len(broken))] ^= 1 << dice.randrange(8)
            path.write_bytes(bytes(broken))
            try:
                load_artifacts(folder)
            except (BadInput, Unsupported) as error:
                assert name in str(error) or "checkpoint" in str(error)
        path.write_bytes(data)


def test_all_damaged_files_are_reported_at_once(folder):
    for name in FILES:
        (folder / name).write_bytes(b"xx")
    text = failure(folder)
    assert all(str(folder / name) in text for name in FILES)


# -------------------------------------------------------------------- files that do not belong together


def test_every_mismatch_of_checkpoint_and_graph_is_listed(folder):
    def change(checkpoint):
        w1, b1, w2, b2 = checkpoint.parameters
        kept = (
            replace(w1, shape=w1.shape[::-1], data=w1.data.T),
            replace(b1, element=ElementType.DOUBLE, data=b1.data.astype(np.float64)),
            replace(w2, name="renamed"),
            replace(b2, trainable=False),
        )
        return replace(checkpoint, parameters=kept)

    rewrite(folder, change)
    text = failure(folder)
    at = f"{folder}/checkpoint: "
    assert f"{at}parameter 'fc1.weight' is float[12, 16], but training_model.onnx wants float[16, 12]" in text
    assert f"{at}parameter 'fc1.weight' is float[12, 16], but eval_model.onnx wants float[16, 12]" in text
    assert f"{at}parameter 'fc1.bias' is double[16], but training_model.onnx wants float[16]" in text
    assert f"{at}parameter 'fc2.weight' of training_model.onnx is missing" in text
    assert f"{at}trainable parameter 'renamed' is not an input of training_model.onnx" in text
    assert "has no gradient buffer 'renamed_grad.accumulation.buffer' for trainable 'renamed'" in text
    assert f"{at}parameter 'fc2.bias' is frozen, but training_model.onnx accumulates its gradient" in text


def test_a_missing_frozen_parameter_is_not_mistaken_for_an_input(tmp_path):
    shutil.copytree(GOLDEN / "transfer", tmp_path / "set")
    rewrite(
        tmp_path / "set",
        lambda c: replace(c, parameters=tuple(p for p in c.parameters if p.name != "depth.weight")),
    )
    assert "parameter 'depth.weight' of training_model.onnx is missing" in failure(tmp_path / "set")


def test_a_missing_gradient_buffer_is_named(folder):
    def change(model):
        graph = model.graph
        name = "fc1.bias_grad.accumulation.buffer"
        kept = [i for i in graph.input if i.name != name]
        nodes = [n for n in graph.node if name not in n.input]
        outputs = [o for o in graph.output if "fc1.bias" not in o.name]
        for field, items in ((graph.input, kept), (graph.node, nodes), (graph.output, outputs)):
            del field[:]
            field.extend(items)

    edit(folder / "training_model.onnx", change)
    assert "has no gradient buffer 'fc1.bias_grad.accumulation.buffer'" in failure(folder)


def test_optimizer_state_must_cover_every_parameter(folder):
    shutil.copy(GOLDEN / "dense" / "checkpoint_final_opt", folder / "checkpoint")
    assert load_artifacts(folder).checkpoint.groups[0].step == 8

    def change(checkpoint):
        (group,) = checkpoint.groups
        moments = {n: dict(m) for n, m in group.moments.items()}
        del moments["fc1.weight"], moments["fc1.bias"]["momentum1"]
        moments["fc2.bias"]["momentum0"] = np.zeros(6, np.float32)
        return replace(checkpoint, groups=(replace(group, moments=moments),))

    rewrite(folder, change)
    text = failure(folder)
    for moment in ("momentum0", "momentum1"):
        assert f"optimizer state '{moment}' of parameter 'fc1.weight' is missing" in text
    assert "optimizer state 'momentum1' of parameter 'fc1.bias' is missing" in text
    assert (
        "optimizer state 'momentum0' of parameter 'fc2.bias' is float32[6], but the parameter is float[5]"
        in text
    )


def test_groups_onnx_runtime_ignores_are_not_judged(folder):
    rewrite(folder, lambda c: replace(c, groups=(OptimizerGroup("other", 1, 0.1, {}),)))
    assert load_artifacts(folder).checkpoint.groups[0].name == "other"
