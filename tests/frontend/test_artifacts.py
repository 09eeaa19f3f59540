"""minbuild.frontend.artifacts: folders become Bundles, and whatever is wrong with them is told completely."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from places import ROOT

from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.artifacts import load_artifacts
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint
from minbuild.frontend.onnx.reader import read_graph
from minbuild.ir import ElementType, OptimizerGroup
from minbuild.ir.dims import symbol

GOLDEN = ROOT / "tests" / "golden"
CASES = ROOT.parent / "shared" / "cases"
SETS = [ROOT / "artifacts", *sorted(p.parent for p in GOLDEN.glob("*/checkpoint"))]
FILES = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private copy of a small set."""
    target = tmp_path / "set"
    target.mkdir()
    for name in FILES:
        shutil.copy(GOLDEN / "dense" / name, target / name)
    return target


def failure(folder: Path) -> str:
    with pytest.raises(BadInput) as caught:
        load_artifacts(folder)
    return str(caught.value)


def graph(*nodes, inputs=(), outputs=("y",), initializers=(), opset=17, **fields):
    """Read a model of these parts."""
    proto = helper.make_graph(
        list(nodes), "g", list(inputs) or [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs], list(initializers),
    )  # fmt: skip
    imports = [
        helper.make_opsetid("", opset),
        helper.make_opsetid("com.microsoft", 1),
        helper.make_opsetid("f", 1),
    ]
    model = helper.make_model(proto, opset_imports=imports, ir_version=8, **fields)
    return read_graph(model.SerializeToString(), Path("m/model.onnx"))


def edit(path: Path, change) -> None:
    model = onnx.load(path)
    change(model)
    path.write_bytes(model.SerializeToString())


def rewrite(folder: Path, change) -> None:
    checkpoint = read_checkpoint(folder / "checkpoint")
    (folder / "checkpoint").write_bytes(write_checkpoint(change(checkpoint)))


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


# ------------------------------------------------------------------------------------------ single graphs


def test_default_domain_has_one_name_and_nodes_get_names():
    node = helper.make_node("Relu", ["x"], ["h"], domain="ai.onnx")
    found = graph(node, helper.make_node("FusedMatMul", ["h", "h"], ["y"], domain="com.microsoft"), opset=14)
    assert [(n.domain, n.version, n.name) for n in found.nodes] == [
        ("", 14, "Relu_0"),
        ("com.microsoft", 1, "FusedMatMul_1"),
    ]


def test_attributes_of_every_plain_kind():
    node = helper.make_node(
        "Anything", ["x"], ["y"], i=3, f=0.5, s="text", ints=[1, 2], floats=[0.5], strings=["a", "b"],
        t=numpy_helper.from_array(np.arange(6, dtype=np.int64).reshape(2, 3)), domain="com.microsoft",
    )  # fmt: skip
    found = graph(node).nodes[0].attributes
    assert found["t"].tolist() == [[0, 1, 2], [3, 4, 5]]
    plain = {k: v for k, v in found.items() if k != "t"}
    assert plain == {"i": 3, "f": 0.5, "s": "text", "ints": (1, 2), "floats": (0.5,), "strings": ("a", "b")}


def test_dimensions_are_symbols_tied_to_their_place():
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", None, 4]),
        helper.make_tensor_value_info("s", TensorProto.INT64, []),
        helper.make_tensor_value_info("u", TensorProto.BOOL, None),
    ]
    found = graph(helper.make_node("Relu", ["x"], ["y"]), inputs=inputs).inputs
    assert found["x"].shape == (symbol("n"), symbol("x_1"), 4)
    assert found["s"].shape == () and found["u"].shape is None


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "INT8", "UINT8", "INT32", "INT64", "BOOL", "FLOAT16"])
@pytest.mark.parametrize("raw", [True, False])
def test_initializers_of_every_type(kind, raw):
    number = getattr(TensorProto, kind)
    values = np.array([[0, 1, 1]], helper.tensor_dtype_to_np_dtype(number))
    stored = values.tobytes() if raw else values.flatten()
    tensor = helper.make_tensor("w", number, [1, 3], stored, raw=raw)
    unread = numpy_helper.from_array(np.zeros(9), "unread")
    found = graph(helper.make_node("Add", ["x", "w"], ["y"]), initializers=[tensor, unread]).initializers
    assert list(found) == ["w"]
    assert found["w"].dtype == ElementType[kind].dtype and np.array_equal(found["w"], values)


def test_bfloat16_is_read_from_raw_and_typed_data():
    tensor = helper.make_tensor(
        "w", TensorProto.BFLOAT16, [2], np.array([0x3F80, 0xC000], "<u2").tobytes(), raw=True
    )
    typed = TensorProto(name="v", data_type=TensorProto.BFLOAT16, dims=[2], int32_data=[0x3F80, 0xC000])
    nodes = [helper.make_node("Add", ["w", "v"], ["y"])]
    found = graph(*nodes, initializers=[tensor, typed]).initializers
    assert found["w"].tolist() == found["v"].tolist() == [1.0, -2.0]


def test_initializers_among_the_inputs_are_constants():
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("x", "w")]
    weights = numpy_helper.from_array(np.ones(3, np.float32), "w")
    found = graph(helper.make_node("Add", ["x", "w"], ["y"]), inputs=inputs, initializers=[weights])
    assert list(found.inputs) == ["x"] and list(found.initializers) == ["w"]


def test_functions_are_inlined():
    body = [helper.make_node("Relu", ["a"], ["t"]), helper.make_node("Neg", ["t"], ["b"])]
    function = helper.make_function("f", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    found = graph(helper.make_node("Twice", ["x"], ["y"], domain="f"), functions=[function])
    assert [n.op_type for n in found.nodes] == ["Relu", "Neg"] and found.nodes[-1].outputs == ("y",)


def test_subgraphs_read_what_is_around_them():
    branch = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["r"])], "b", [], [helper.make_empty_tensor_value_info("r")]
    )
    node = helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch, else_branch=branch)
    inputs = [
        helper.make_tensor_value_info(n, t, [1])
        for n, t in (("x", TensorProto.FLOAT), ("c", TensorProto.BOOL))
    ]
    weight = numpy_helper.from_array(np.ones(1, np.float32), "w")
    found = graph(node, inputs=inputs, initializers=[weight])
    inner = found.nodes[0].attributes["then_branch"]
    assert [n.op_type for n in inner.nodes] == ["Add"] and inner.outputs == ("r",)
    assert list(found.initializers) == ["w"], "read by a branch alone"
    with pytest.raises(BadInput, match="reads 'w', which nothing before it defines"):
        graph(node, inputs=inputs)


def test_strings_and_maps_are_unsupported_not_damage():
    text = helper.make_tensor_value_info("x", TensorProto.STRING, [1])
    with pytest.raises(Unsupported, match="input 'x' has element type string"):
        graph(helper.make_node("Identity", ["x"], ["y"]), inputs=[text])
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
    with pytest.raises(Unsupported, match="is of kind optional_type"):
        graph(helper.make_node("Identity", ["x"], ["y"]), inputs=[helper.make_value_info("x", optional)])


def test_broken_graphs_are_described():
    wrong = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], raw_data=bytes(8))
    nodes = [
        helper.make_node("Add", ["x", "w"], ["y"], "a"),
        helper.make_node("Add", ["x", "later"], ["y"], "b"),
        helper.make_node("Neg", ["x"], ["z"], "c", domain="nowhere"),
    ]
    with pytest.raises(BadInput) as caught:
        graph(*nodes, initializers=[wrong], outputs=("y", "lost"))
    text = str(caught.value)
    assert "initializer 'w' has 8 bytes, but float32[3] takes 12" in text
    assert "node 'b' (Add) reads 'later', which nothing before it defines" in text
    assert "node 'b' (Add) defines 'y', which exists already" in text
    assert "node 'c' (Neg) is of domain 'nowhere', which the file imports no opset of" in text
    assert "the list of outputs reads 'lost'" in text


def test_files_newer_than_the_onnx_package(folder):
    edit(folder / "eval_model.onnx", lambda m: setattr(m, "ir_version", 99))
    assert "ONNX IR version is 99, but the installed onnx package" in failure(folder)


# ------------------------------------------------------------------------------------------ external data


def external(folder: Path, location: str, offset: int = 4, read: bool = True):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", str(offset)), ("length", "12")):
        tensor.external_data.add(key=key, value=value)
    proto = helper.make_graph(
        [helper.make_node("Add", ["x", "w" if read else "x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])], [tensor],
    )  # fmt: skip
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return read_graph(model.SerializeToString(), folder / "model.onnx")


def test_external_data_is_mapped(tmp_path):
    (tmp_path / "weights.bin").write_bytes(np.arange(4, dtype="<f4").tobytes())
    found = external(tmp_path, "weights.bin").initializers["w"]
    assert isinstance(found, np.memmap) and found.tolist() == [1, 2, 3]


def test_external_data_that_is_missing_short_or_elsewhere(tmp_path):
    with pytest.raises(BadInput, match=r"weights.bin: no such file, but initializer 'w' of model.onnx"):
        external(tmp_path, "weights.bin")
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    with pytest.raises(BadInput, match="needs bytes 4 to 16, but the file has 8"):
        external(tmp_path, "weights.bin")
    for location in ("../weights.bin", "/etc/passwd", ""):
        with pytest.raises(BadInput, match="initializer 'w'"):
            external(tmp_path, location)


def test_external_data_nobody_reads_may_be_missing(tmp_path):
    assert external(tmp_path, "weights.bin", read=False).initializers == {}
