"""Single ONNX graphs: attributes, initializers, functions, subgraphs, external data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from artifact_folders import edit, failure, graph
from onnx import TensorProto, helper, numpy_helper

from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.onnx.reader import read_graph
from minbuild.ir import ElementType
from minbuild.ir.dims import symbol


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
    optional = helper.make_optional_type_proto(
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
    )
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


def sparse_model(indices, values=(0.5, -0.3, 0.7), dims=(4, 3)):
    """y = x w, where `w` is given in coordinates."""
    stored = helper.make_sparse_tensor(
        numpy_helper.from_array(np.float32(values), "w"),
        numpy_helper.from_array(np.array(indices, np.int64), ""),
        list(dims),
    )
    made = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "sparse",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        sparse_initializer=[stored],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return read_graph(model.SerializeToString(), Path("model.onnx"))


@pytest.mark.parametrize("indices", [[0, 5, 10], [[0, 0], [1, 2], [3, 1]]], ids=["flat", "coordinates"])
def test_sparse_initializers_are_read_in_dense_form(indices):
    wanted = np.zeros(12, np.float32)
    wanted[[0, 5, 10]] = 0.5, -0.3, 0.7
    np.testing.assert_array_equal(sparse_model(indices).initializers["w"], wanted.reshape(4, 3))


def test_sparse_initializers_that_are_damaged_or_too_large_are_refused():
    with pytest.raises(BadInput, match=r"sparse initializer 'w' has indices outside of \[4, 3\]"):
        sparse_model([0, 5, 12])
    with pytest.raises(BadInput, match="not one for each value"):
        sparse_model([0, 5], values=(1, 2, 3))
    with pytest.raises(Unsupported, match="'w' takes too much memory in dense form"):
        sparse_model([0, 5, 10], dims=(1 << 20, 1 << 20))
