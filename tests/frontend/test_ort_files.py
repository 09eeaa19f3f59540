"""Artifacts in ONNX Runtime's own format: what is in the files, and what is refused. That ONNX Runtime trains from them
to the same bits as from the ONNX files is tested in slow/test_with_ort.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from authored import FORWARD, source, uniform
from commands import GOLDEN, command_fixture  # noqa: F401

from minbuild.authoring import Recipe, Source, make_artifacts, write_artifacts
from minbuild.authoring.optimizers import OptimizerOptions
from minbuild.compat.ort_config.grammar import parse_config
from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.artifacts import load_artifacts
from minbuild.frontend.onnx import reader as onnx_reader
from minbuild.frontend.onnx.reader import read_graph
from minbuild.frontend.ort_format.kernel_types import kernel_types
from minbuild.frontend.ort_format.reader import read_ort_graph, schema
from minbuild.frontend.ort_format.writer import with_stored_constants, write_ort_graph
from minbuild.ir import ElementType, Graph, Node, TensorType
from minbuild.ir.flatbuffers.codec import decode, encode
from minbuild.training.artifacts import LossType, OptimType, generate_artifacts

pytestmark = pytest.mark.unit

W = uniform((4, 3))[0]
LINEAR = source("m (float[n,4] x) => (float[n,3] y) { y = MatMul (x, w) }", {"w": W})
CLIPPED = OptimizerOptions(max_norm=1.0)
MODELS = ("training_model", "eval_model", "optimizer_model")


def recipe(name: str) -> Recipe:
    loss = "cross-entropy" if FORWARD[name].loss == "CrossEntropyLoss" else "mse"
    return Recipe(loss=loss, optimizer="adamw", optimizer_options=CLIPPED, ort=True)


def forward(name: str) -> Source:
    model = FORWARD[name].build()[1]
    path = Path("model.onnx")
    return Source(onnx_reader.read_model(model, path), onnx_reader.opset_in(model), path)


def plain(value):
    """What decoding gives, comparable."""
    if isinstance(value, dict):
        return {n: plain(v) for n, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return (value.dtype.str, value.tolist()) if isinstance(value, np.ndarray) else value


def same(left: Graph, right: Graph) -> None:
    assert left.nodes == right.nodes
    assert (left.inputs, left.sequences, left.outputs) == (right.inputs, right.sequences, right.outputs)
    assert left.initializers.keys() == right.initializers.keys()
    for name, array in left.initializers.items():
        wanted = np.asarray(right.initializers[name])
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
        assert np.asarray(array).tobytes() == wanted.tobytes(), name


@pytest.mark.parametrize("name", FORWARD)
def test_the_files_say_what_the_onnx_files_say(name):
    made = make_artifacts(forward(name), recipe(name), prefix="net_")
    for model in MODELS:
        path = Path(f"net_{model}.onnx")
        stored = with_stored_constants(read_graph(made.files[path.name], path))
        found = read_ort_graph(made.files[f"net_{model}.ort"], path)
        attributes = [n.attributes for n in found.nodes]
        assert attributes == [n.attributes for n in stored.nodes]
        same(found, stored)
        config = parse_config(made.files[f"net_{model}.required_operators.config"].decode(), model)
        assert {(d, n) for d, _, n in config.operators} == {
            (n.domain or "ai.onnx", n.op_type) for n in stored.nodes
        }
    assert make_artifacts(forward(name), recipe(name), prefix="net_") == made  # byte for byte


@pytest.mark.parametrize("path", sorted((GOLDEN / "dense_ort").glob("*.ort")), ids=lambda p: p.name)
def test_onnx_runtimes_own_files_come_out_of_the_encoder_as_they_went_in(path):
    session = decode(schema(), path.read_bytes())
    assert session["kernel_types"]["operators"]
    assert plain(decode(schema(), encode(schema(), session))) == plain(session)


@pytest.mark.parametrize("path", sorted((GOLDEN / "dense_ort").glob("*.ort")), ids=lambda p: p.name)
def test_kernels_find_their_types_where_onnx_runtime_says(path):
    for entry in decode(schema(), path.read_bytes())["kernel_types"]["operators"]:
        domain, name, version = entry["operator"].split(":")
        found = kernel_types(domain, name, int(version))
        assert found == {
            kind["name"]: tuple((a["side"], a["index"]) for a in kind["arguments"]) for kind in entry["types"]
        }, name


def test_edges_join_outputs_with_the_inputs_that_read_them():
    made = make_artifacts(LINEAR, Recipe(loss="mse", ort=True))
    graph = decode(schema(), made.files["training_model.ort"])["model"]["graph"]
    nodes = {node["index"]: node for node in graph["nodes"]}
    assert graph["largest_index"] == len(nodes) == len(graph["edges"])
    joined = 0
    for entry in graph["edges"]:
        reader = nodes[entry["node"]]
        for maker, output, place in entry["inputs"].tolist():
            assert nodes[maker]["outputs"][output] == reader["inputs"][place]
            joined += 1
        for other, output, place in entry["outputs"].tolist():
            assert reader["outputs"][output] == nodes[other]["inputs"][place]
    made_here = {n for node in nodes.values() for n in node["outputs"]}
    assert joined == sum(n in made_here for node in nodes.values() for n in node["inputs"])


def test_folders_with_nothing_else_load_and_are_the_same(tmp_path):
    write_artifacts(make_artifacts(LINEAR, Recipe(loss="mse", ort=True)), tmp_path)
    before = load_artifacts(tmp_path)
    for model in MODELS:
        (tmp_path / f"{model}.onnx").unlink()
    after = load_artifacts(tmp_path)
    for one, other in zip(
        (before.training, before.evaluation, before.optimizer),
        (after.training, after.evaluation, after.optimizer),
        strict=True,
    ):
        same(replace(other, source=one.source), with_stored_constants(one))


def test_everything_that_onnx_runtime_lacks_is_named_at_once():
    softplus = source(
        "m (float[n,4] x) => (float[n,4] y) { a = Mul (x, w) y = Softplus (a) }", {"w": W[:, 0]}
    )
    with pytest.raises(Unsupported) as refused:
        make_artifacts(softplus, Recipe(loss="mse", optimizer="rmsprop", ort=True))
    assert [f.split(":")[0] for f in refused.value.findings] == [
        "training_model.onnx",
        "optimizer_model.onnx",
    ]
    assert "minbuild:SoftplusGrad" in str(refused.value) and "Leave --ort out" in str(refused.value)


def test_what_the_format_cannot_hold_is_refused(monkeypatch):
    tensor = TensorType(ElementType.FLOAT, (2,))
    inner = Graph("inner", (Node("Relu", "", 17, "relu", ("x",), ("z",), {}),), {}, {}, ("z",), {})
    choice = Node("If", "", 17, "choose", ("c",), ("y",), {"then_branch": inner, "else_branch": inner})
    inputs = {"x": tensor, "c": TensorType(ElementType.BOOL, ())}
    graph = Graph("model.onnx", (choice,), inputs, {}, ("y",), {})
    with pytest.raises(Unsupported, match="'choose' .*: holds a graph"):
        write_ort_graph(graph, {"y": tensor}, {"": 17})
    relu = replace(graph, nodes=inner.nodes, outputs=("z",))
    with pytest.raises(Unsupported, match="the type of 'z' is not known"):
        write_ort_graph(relu, {}, {"": 17})
    monkeypatch.setattr("minbuild.frontend.ort_format.writer.LARGEST_FILE", 15)
    with pytest.raises(BadInput, match="16 bytes of constants do not fit"):
        write_ort_graph(replace(relu, initializers={"k": np.zeros(4, np.float32)}), {"z": tensor}, {"": 17})


def test_attributes_of_every_kind_come_back():
    attributes = {
        "a_float": 0.5,
        "a_text": "é",
        "an_int": -3,
        "floats": (0.25, 1.0),
        "ints": (1, -(2**40)),
        "none": (),
        "tensor": np.arange(6, dtype=np.int64).reshape(2, 3),
        "texts": ("a", ""),
    }
    node = Node("Relu", "", 17, "relu", ("x",), ("y",), attributes)
    tensor = TensorType(ElementType.FLOAT, (2,))
    graph = Graph("model.onnx", (node,), {"x": tensor}, {}, ("y",), {})
    (back,) = read_ort_graph(write_ort_graph(graph, {"y": tensor}, {"": 17}), Path("model.ort")).nodes
    found = dict(back.attributes)
    np.testing.assert_array_equal(found.pop("tensor"), attributes.pop("tensor"))
    assert found == attributes


def test_an_attribute_of_no_type_is_refused():
    tensor = TensorType(ElementType.FLOAT, (2,))
    node = Node("LeakyRelu", "", 17, "leaky", ("x",), ("y",), {"alpha": 0.5})
    graph = Graph("model.onnx", (node,), {"x": tensor}, {}, ("y",), {})
    session = decode(schema(), write_ort_graph(graph, {"y": tensor}, {"": 17}))
    session["model"]["graph"]["nodes"][0]["attributes"][0]["type"] = 99
    with pytest.raises(BadInput, match=r"model.ort: attribute 'alpha' has the type 99, which does not exist"):
        read_ort_graph(encode(schema(), session), Path("model.ort"))


def test_generate_artifacts_writes_the_files_onnx_runtimes_does(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> m (float[n,4] x) => (float[n,3] y) { y = MatMul (x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    generate_artifacts(
        model, loss=LossType.MSELoss, optimizer=OptimType.SGD, ort_format=True, artifact_directory=tmp_path
    )
    kinds = (".onnx", ".ort", ".required_operators.config")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["checkpoint", *(m + k for m in MODELS for k in kinds)]
    )


def test_the_command_writes_them_too(minbuild, tmp_path):
    model = FORWARD["dense"].build()[1]
    onnx.save(model, tmp_path / "model.onnx")
    said = minbuild("artifacts", tmp_path / "model.onnx", "--out", tmp_path / "made", "--ort")
    assert said.code == 0, said.err
    assert str(tmp_path / "made" / "eval_model.ort") in said.out
    refused = minbuild(
        "artifacts", tmp_path / "model.onnx", "--out", tmp_path / "other", "--ort", "--optimizer", "momentum"
    )
    assert refused.code == 3 and "MomentumOptimizer" in refused.err and not (tmp_path / "other").exists()
