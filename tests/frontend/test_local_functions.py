"""Functions that a model defines itself: inlined, or refused with a reason before they take memory or time."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import ModelProto, helper

from minbuild.errors import BadInput
from minbuild.frontend.onnx.reader import read_model

pytestmark = pytest.mark.unit

PATH = Path("model.onnx")


def model_with(functions: dict[str, list[str]], call: str) -> ModelProto:
    """A model that calls `call`; each function is a chain of calls of others, or of Identity."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(call, ["x"], ["y"], domain="local")], "g", [info("x", 1, [2])], [info("y", 1, [2])]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("local", 1)], ir_version=8
    )
    for name, calls in functions.items():
        nodes = [
            helper.make_node(c, [f"v{i}"], [f"v{i + 1}"], domain="local" if c in functions else "")
            for i, c in enumerate(calls)
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        model.functions.append(helper.make_function("local", name, ["v0"], [f"v{len(calls)}"], nodes, opsets))
    return model


def test_functions_become_their_nodes() -> None:
    model = model_with({"twice": ["once", "once"], "once": ["Relu"]}, "twice")
    assert [n.op_type for n in read_model(model, PATH).nodes] == ["Relu", "Relu"]


def test_a_function_that_calls_itself_is_refused() -> None:
    with pytest.raises(BadInput, match="function '(a|b)' calls itself"):
        read_model(model_with({"a": ["b"], "b": ["Relu", "a"]}, "a"), PATH)


def test_a_function_defined_twice_is_refused() -> None:
    model = model_with({"a": ["Relu"]}, "a")
    model.functions.append(model.functions[0])
    with pytest.raises(BadInput, match="function 'a' is defined twice"):
        read_model(model, PATH)


def test_functions_that_double_forty_times_are_refused_at_once() -> None:
    chain = {f"f{i}": [f"f{i + 1}"] * 2 for i in range(40)} | {"f40": ["Relu"]}
    with pytest.raises(BadInput, match=r"stand for 1,099,511,627,776 nodes"):
        read_model(model_with(chain, "f0"), PATH)


def test_attributes_of_another_type_name_node_and_types() -> None:
    info = helper.make_tensor_value_info
    node = helper.make_node("Softmax", ["x"], ["y"], name="s", axis=1.5)
    graph = helper.make_graph([node], "g", [info("x", 1, [2])], [info("y", 1, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(
        BadInput, match=r"node 's' \(Softmax\) has attribute 'axis' of type float; the operator takes int"
    ):
        read_model(model, PATH)


def test_versions_that_no_opset_has_are_refused() -> None:
    model = model_with({}, "Relu")
    model.opset_import[0].version = 2**62
    with pytest.raises(BadInput, match="opset 4611686018427387904 of domain 'ai.onnx' does not exist"):
        read_model(model, PATH)
