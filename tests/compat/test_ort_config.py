"""Configurations of ONNX Runtime's reduced build: the same as its own converter writes, and none of the defects of its
reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import case_sets
import onnx
import pytest
from commands import FREE, GOLDEN, SMALL, Command, command_fixture, copy_of  # noqa: F401
from onnx import TensorProto, helper
from ort_configs import lines_of

from minbuild.compat.ort_config.collect import requirements
from minbuild.compat.ort_config.effective_graph import EffectiveGraph
from minbuild.compat.ort_config.fusions import fuse
from minbuild.compat.ort_config.grammar import render_config
from minbuild.compat.ort_config.requirements import Types
from minbuild.compat.ort_config.simplify import simplify
from minbuild.compat.ort_config.transposed_shapes import untranspose_shapes
from minbuild.ir import ElementType, Node, TensorType

FLOAT = Types({("inputs", 0): frozenset({"float"})})
RECORDED = [  # what ONNX Runtime 1.19.2's converter wrote, beside what it was given
    (style, folder, path)
    for folder in (*sorted(GOLDEN.iterdir()), *sorted(case_sets.SHARED.glob("*")))
    if folder.is_dir()
    for style, ending in (("fixed", "types.config"), ("runtime", "types.with_runtime_opt.config"))
    for path in folder.glob(f"*required_operators_and_{ending}")
]


@pytest.mark.parametrize("style,folder,path", RECORDED, ids=lambda v: v if isinstance(v, str) else v.name)
def test_it_is_what_the_converter_writes(style: str, folder: Path, path: Path) -> None:
    written = render_config(requirements([folder], style), [])
    assert lines_of(written) == lines_of(path.read_text())


def test_there_is_something_to_compare_with() -> None:
    assert {style for style, folder, _ in RECORDED if folder.parent == GOLDEN} == {"fixed", "runtime"}


def test_a_function_is_listed_as_what_it_is_made_of(tmp_path: Path) -> None:
    """`DivGrad` has no kernel: ONNX Runtime's scan of `.onnx` files lists it nevertheless. What its converter finds in
    a model that divides by a trained parameter is recorded here."""
    folder = copy_of(FREE, tmp_path / "a")
    model = onnx.load(str(folder / "training_model.onnx"))
    weight = next(i.name for i in model.graph.input if i.name.endswith("bias"))
    size = next(i for i in model.graph.input if i.name == weight).type.tensor_type.shape.dim[0].dim_value
    node = helper.make_node("DivGrad", ["dy", "a", weight], ["da", "db"], "quotient", domain="com.microsoft")
    for name in ("dy", "a"):
        model.graph.input.insert(0, helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]))
    for name in ("da", "db"):
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    model.graph.node.append(node)
    onnx.save(model, str(folder / "training_model.onnx"))
    for style in ("fixed", "runtime"):
        before, after = requirements([FREE], style).operators, requirements([folder], style).operators
        assert set(after) - set(before) == {
            ("ai.onnx", 13, "Neg"),
            *(("ai.onnx", 14, n) for n in ("Div", "Mul", "Reshape")),
            ("ai.onnx", 15, "Shape"),
            *(("com.microsoft", 1, n) for n in ("BroadcastGradientArgs", "ReduceSumTraining")),
        } - set(before)
        assert not after["ai.onnx", 14, "Reshape"] and after["ai.onnx", 14, "Div"] == FLOAT


def test_gemm_takes_what_is_around_it() -> None:
    """As the converter does it, a leaky ReLU only up to the version it looks for."""
    assert _left("Relu") == _left("Tanh") == _left("LeakyRelu", 14) == ["FusedGemm"]
    assert _left("LeakyRelu", 17) == ["Gemm", "LeakyRelu"] and _left("Erf") == ["Gemm", "Erf"]
    assert _left("Transpose") == ["Gemm"] and _left("Sum", 17, "other") == ["Gemm"]


def test_shapes_of_transposed_values_are_gathered() -> None:
    """As 1.19.2 does it: where everything that reads the value lets a transpose through, and never for a result."""
    gathered = ["Gather", "Shape"]
    assert _untransposed() == gathered and _untransposed("Relu") == ["Gather", "Relu", "Shape", "Transpose"]
    assert _untransposed("MatMul") == ["MatMul", "Shape", "Transpose"]
    assert _untransposed("Add", "Conv") == ["Add", "Conv", "Shape", "Transpose"]
    assert _untransposed("ReluGrad", domain="com.microsoft") == ["ReluGrad", "Shape", "Transpose"]
    assert _untransposed(outputs="ts") == ["Shape", "Transpose"]
    assert _untransposed(perm=None) == ["Shape", "Transpose"]
    assert _untransposed(sizes=(1, 1, 1)) == ["Shape", "Transpose"]
    whole = _transposed()
    untranspose_shapes(whole)
    shape, gather = whole.nodes
    assert (shape.inputs, gather.inputs[0], gather.outputs) == (("x",), shape.outputs[0], ("s",))
    assert all(whole.types[name].element == ElementType.INT64 for name in gather.inputs)


def _untransposed(*readers: str, **options: Any) -> list[str]:
    """What becomes of the shape of a transposed value that these operators read too."""
    graph = _transposed(*readers, **options)
    untranspose_shapes(graph)
    return sorted(node.op_type for node in graph.nodes)


def _transposed(
    *readers: str,
    outputs: str = "s",
    perm: tuple[int, ...] | None = (2, 0, 1),
    sizes: tuple[Any, ...] = ("a", 5, "b"),
    domain: str = "",
) -> EffectiveGraph:
    attributes = {} if perm is None else {"perm": perm}
    nodes = [
        Node("Transpose", "", 17, "turn", ("x",), ("t",), attributes),
        Node("Shape", "", 17, "shape", ("t",), ("s",), {}),
        *(
            Node(op_type, domain, 1 if domain else 17, op_type, ("t",), (f"r{i}",), {})
            for i, op_type in enumerate(readers)
        ),
    ]
    results = frozenset({*outputs, *(f"r{i}" for i in range(len(readers)))})
    return EffectiveGraph("f", nodes, {"x": TensorType(ElementType.FLOAT, sizes)}, {}, set(), results)


def _left(after: str, opset: int = 17, *more: str) -> list[str]:
    """What becomes of a Gemm and the operator behind it."""
    matrix = TensorType(ElementType.FLOAT, (4, 4))
    nodes = [
        Node("Gemm", "", opset, "g", ("a", "b"), ("c",), {}),
        Node(after, "", opset, "n", ("c", *more), ("d",), {"perm": (1, 0)} if after == "Transpose" else {}),
    ]
    graph = EffectiveGraph(
        "f", nodes, dict.fromkeys(("a", "b", "c", "d", "other"), matrix), {}, set(), frozenset({"d"})
    )
    simplify(graph)
    fuse(graph)
    return [node.op_type for node in graph.nodes]


def test_models_with_maps_are_answered_in_words(minbuild: Command, tmp_path: Path) -> None:
    """Theirs ends with an AttributeError."""
    folder = copy_of(SMALL, tmp_path / "a")
    model = onnx.load(str(folder / "eval_model.onnx"))
    entry = model.graph.input.add(name="table")
    entry.type.map_type.key_type = TensorProto.INT64
    entry.type.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(model, str(folder / "eval_model.onnx"))
    said = minbuild("ort-config", folder)
    assert said.code == 3 and "input 'table' is of kind map_type" in said.err


def test_domains_without_an_opset_are_not_skipped(minbuild: Command, tmp_path: Path) -> None:
    """Theirs leaves such nodes out, and everything inside them."""
    folder = copy_of(SMALL, tmp_path / "a")
    model = onnx.load(str(folder / "eval_model.onnx"))
    model.graph.node.append(helper.make_node("Odd", ["input"], ["odd"], domain="x.y"))
    onnx.save(model, str(folder / "eval_model.onnx"))
    said = minbuild("ort-config", folder)
    assert said.code == 2 and "x.y" in said.err


def test_local_functions_are_looked_into(tmp_path: Path) -> None:
    """Theirs never visits them."""
    folder = copy_of(SMALL, tmp_path / "a")
    model = onnx.load(str(folder / "eval_model.onnx"))
    sine = helper.make_node("Sin", ["x"], ["y"])
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("local", "Wave", ["x"], ["y"], [sine], opsets))
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.graph.node.append(helper.make_node("Wave", ["input"], ["wave"], domain="local"))
    model.graph.output.append(helper.make_tensor_value_info("wave", TensorProto.FLOAT, None))
    onnx.save(model, str(folder / "eval_model.onnx"))
    assert requirements([folder]).operators["ai.onnx", 7, "Sin"] == FLOAT


def _branch(op_type: str) -> onnx.GraphProto:
    result = helper.make_tensor_value_info(op_type, TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node(op_type, ["input"], [op_type])], op_type, [], [result])


def test_branches_are_looked_into(tmp_path: Path) -> None:
    folder = copy_of(SMALL, tmp_path / "a")
    model = onnx.load(str(folder / "eval_model.onnx"))
    largest = helper.make_node("ReduceMax", ["input"], ["largest"], keepdims=0)
    flag = helper.make_node("IsNaN", ["largest"], ["flag"])
    choice = helper.make_node("If", ["flag"], ["y"], then_branch=_branch("Sin"), else_branch=_branch("Cos"))
    model.graph.node.extend([largest, flag, choice])
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    onnx.save(model, str(folder / "eval_model.onnx"))
    found = requirements([folder]).operators
    assert {("ai.onnx", 7, "Cos"), ("ai.onnx", 16, "If")} <= set(found)
    assert found["ai.onnx", 7, "Sin"] == FLOAT


def test_lists_of_graphs_are_answered_in_words(minbuild: Command, tmp_path: Path) -> None:
    """Theirs ends with an exception without a node's name."""
    folder = copy_of(SMALL, tmp_path / "a")
    model = onnx.load(str(folder / "eval_model.onnx"))
    model.opset_import.append(helper.make_opsetid("x.y", 1))
    node = helper.make_node("Switch", ["input"], ["y"], "chooser", domain="x.y", branches=[_branch("Sin")])
    model.graph.node.append(node)
    onnx.save(model, str(folder / "eval_model.onnx"))
    said = minbuild("ort-config", folder)
    assert said.code == 3 and "'chooser' (Switch): attribute 'branches' of kind graphs" in said.err
