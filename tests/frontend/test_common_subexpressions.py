"""Equal nodes of a loop's body: one computes what all of them do."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from minbuild.frontend.onnx.common_subexpressions import without_repetitions
from minbuild.frontend.onnx.reader import read_model
from minbuild.ir import Graph

pytestmark = pytest.mark.unit


def graph(nodes: str) -> Graph:
    """The graph of `nodes`, which make z of x."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> m (float[2,3] x) => (float z) {{ {nodes} }}'
    return read_model(onnx.parser.parse_model(text), Path("model.onnx"))


def operators(nodes: str) -> list[str]:
    return [n.op_type for n in without_repetitions(graph(nodes)).nodes]


def test_equal_nodes_of_equal_values_are_one() -> None:
    made = without_repetitions(graph("a = Exp (x) b = Exp (x) c = Neg (a) d = Neg (b) z = Add (c, d)"))
    assert [n.op_type for n in made.nodes] == ["Exp", "Neg", "Add"]
    assert made.nodes[-1].inputs == ("c", "c")


def test_attributes_and_contents_of_constants_count() -> None:
    one = "Constant <value_floats = [1.0, 2.0]> ()"
    other = "Constant <value_floats = [1.0, 3.0]> ()"
    assert operators(f"a = {one} b = {one} z = Add (a, b)") == ["Constant", "Add"]
    assert operators(f"a = {one} b = {other} z = Add (a, b)") == ["Constant", "Constant", "Add"]
    softmax = "a = Softmax <axis = 0> (x) b = Softmax <axis = {}> (x) z = Add (a, b)"
    assert operators(softmax.format(0)) == ["Softmax", "Add"]
    assert operators(softmax.format(1)) == ["Softmax", "Softmax", "Add"]


def test_results_and_draws_stay() -> None:
    assert operators("a = Exp (x) z = Exp (x)") == ["Exp", "Exp"]
    draws = "a = RandomUniformLike (x) b = RandomUniformLike (x) z = Add (a, b)"
    assert operators(draws) == ["RandomUniformLike", "RandomUniformLike", "Add"]
    assert operators("a = Bernoulli (x) b = Bernoulli (x) z = Add (a, b)").count("Bernoulli") == 2


def test_equal_initializers_are_one() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        m (float[3] x) => (float[3] z) <float[3] p = {1, 2, 3}, float[3] q = {1, 2, 3}> {
            a = Add (x, p) b = Add (x, q) z = Mul (a, b)
        }"""
    found = read_model(onnx.parser.parse_model(text), Path("model.onnx"))
    assert [n.op_type for n in without_repetitions(found).nodes] == ["Add", "Mul"]
