"""Nodes that lack what their operators need are damage, all of it told at once, in any graph of a file."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper
from training_models import Info, Trainable, graph, node

from minbuild.errors import BadInput
from minbuild.frontend.onnx.reader import read_model
from minbuild.frontend.onnx.schema_check import schema_violations
from minbuild.ir import Node


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (Node("Mul", "", 17, "n", ("a",), ("y",), {}), "has 1 inputs; the operator takes 2"),
        (Node("Neg", "", 17, "n", ("a", "b"), ("y",), {}), "has 2 inputs; the operator takes 1"),
        (
            Node("Clip", "", 17, "n", ("a", "", "", "b"), ("y",), {}),
            "has 4 inputs; the operator takes 1 to 3",
        ),
        (Node("Mul", "", 17, "n", ("a", "b", ""), ("y",), {}), "has 3 inputs; the operator takes 2"),
        (Node("Gemm", "", 17, "n", ("", "b"), ("y",), {}), "leaves out input 'A', which the operator needs"),
        (Node("Cast", "", 17, "n", ("a",), ("y",), {}), "has no attribute 'to', which the operator needs"),
        (Node("Constant", "", 17, "n", (), ("y",), {}), "has no attribute with its value"),
        (Node("Neg", "", 17, "n", ("a",), ("y", "z"), {}), "has 2 outputs; the operator has 1"),
        (Node("Adam", "ai.onnx.preview.training", 1, "n", ("r", "t"), ("y",), {}), "has 2 inputs"),
    ],
    ids=lambda x: x if isinstance(x, str) else x.op_type,
)
def test_what_is_missing_is_named(made, text):
    (problem,) = schema_violations(made)
    assert text in problem


@pytest.mark.parametrize(
    "made",
    [
        Node("Clip", "", 17, "n", ("a", "", "b"), ("y",), {}),
        Node("Clip", "", 17, "n", ("a", "", ""), ("y",), {}),
        Node("Reshape", "", 1, "n", ("a",), ("y",), {"shape": (1,)}),
        Node("ReluGrad", "com.microsoft", 1, "n", ("a", "b"), ("y",), {}),
        Node("GraphCall", "ai.onnx.preview.training", 1, "n", (), ("y",), {}),
    ],
    ids=lambda x: x.op_type,
)
def test_what_may_be_left_out_may_be(made):
    assert not list(schema_violations(made))


def test_names_of_attributes_are_text(tmp_path):
    given = helper.make_node("Neg", ["x"], ["y"], "first", axis=1)
    inference = graph([given], {"x": [1]}, "y")
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(inference).SerializeToString().replace(b"axis", b"ax\xff\xfe"))
    with pytest.raises(
        BadInput, match=r"node 'first' \(Neg\): the name of its operator, domain or an attribute is"
    ):
        read_model(onnx.load(path), path)


def test_outputs_have_names(tmp_path):
    inference = graph([node("Neg", "x", "y")], {"x": [1]}, "y")
    inference.output[0].name = ""
    with pytest.raises(BadInput, match="an output of the graph has no name"):
        Trainable(inference, [Info(graph([node("Neg", "y", "q")], {}, "q"))]).artifacts(tmp_path)


def test_every_graph_of_a_file_is_looked_at(tmp_path):
    inference = graph([helper.make_node("Mul", ["x"], ["y"], "first")], {"x": [1]}, "y")
    algorithm = graph([node("Momentum", "y", "q"), helper.make_node("Cast", ["y"], ["z"], "last")], {}, "q z")
    with pytest.raises(BadInput) as refused:
        Trainable(inference, [Info(algorithm)]).artifacts(tmp_path)
    texts = str(refused.value)
    for text in (
        "model.onnx: node 'first' (Mul) has 1 inputs; the operator takes 2.",
        "training_info[0].algorithm: node 'Momentum of q' (Momentum) has 1 inputs",
        "training_info[0].algorithm: node 'last' (Cast) has no attribute 'to', which the operator needs.",
    ):
        assert text in texts
    assert texts.count("'first'") == 1
