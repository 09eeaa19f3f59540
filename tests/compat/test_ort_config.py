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

from minbuild.compat.ort_config.check import missing_operators
from minbuild.compat.ort_config.collect import requirements
from minbuild.compat.ort_config.effective_graph import EffectiveGraph
from minbuild.compat.ort_config.fusions import fuse
from minbuild.compat.ort_config.grammar import parse_config, render_config
from minbuild.compat.ort_config.requirements import Requirements, Types, union
from minbuild.compat.ort_config.simplify import simplify
from minbuild.compat.ort_config.transposed_shapes import untranspose_shapes
from minbuild.errors import BadInput
from minbuild.ir import ElementType, Node, TensorType

FLOAT = Types({("inputs", 0): frozenset({"float"})})
RECORDED = [  # what ONNX Runtime 1.19.2's converter wrote, beside what it was given
    (style, folder, path)
    for folder in (*sorted(GOLDEN.iterdir()), *sorted(case_sets.SHARED.glob("*")))
    if folder.is_dir()
    for style, ending in (("fixed", "types.config"), ("runtime", "types.with_runtime_opt.config"))
    for path in folder.glob(f"*required_operators_and_{ending}")
]


def parsed(*lines: str) -> Requirements:
    return parse_config("\n".join(lines), "f.config")


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


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


# ------------------------------------------------------------------------------ the grammar, and what it does to others


def test_everything_of_the_grammar_is_read() -> None:
    found = parsed(
        "# a comment",
        "",
        'ai.onnx;12,13;Add{"inputs": {"0": ["float", "int64_t"]}},Reshape , Cast{"inputs": {"0": ["bool"]}, '
        '"outputs": {"0": ["float"]}}',
        'ai.onnx;11;OneHot{"custom": [["float", "int64_t", "int32_t"]]}',
        "com.microsoft;1;FusedGemm",
    )
    assert set(found.operators) == {
        *(("ai.onnx", v, n) for v in (12, 13) for n in ("Add", "Reshape", "Cast")),
        ("ai.onnx", 11, "OneHot"),
        ("com.microsoft", 1, "FusedGemm"),
    }
    assert found.operators["ai.onnx", 13, "Cast"].places == {
        ("inputs", 0): frozenset({"bool"}),
        ("outputs", 0): frozenset({"float"}),
    }
    assert found.operators["ai.onnx", 11, "OneHot"].triples == {("float", "int64_t", "int32_t")}
    assert not found.operators["com.microsoft", 1, "FusedGemm"] and not found.everything
    assert parse_config(render_config(found, []), "again").operators == found.operators


def test_an_empty_file_means_nothing_unless_it_says_everything() -> None:
    keep = "!no_ops_specified_means_all_ops_are_required"
    assert not parsed("# nothing").everything
    assert parsed(keep).everything and not parsed(keep, "ai.onnx;13;Gemm").everything
    assert parse_config(render_config(parsed(keep), []), "again").everything


def test_repeated_lines_add_up() -> None:
    """Theirs keeps the types of the last line only."""
    found = parsed(
        'ai.onnx;13;Cast{"inputs": {"0": ["float"]}}', 'ai.onnx;13;Cast{"inputs": {"0": ["int32_t"]}}'
    )
    assert found.operators["ai.onnx", 13, "Cast"].names == {"float", "int32_t"}
    untyped = parsed("ai.onnx;13;Cast", 'ai.onnx;13;Cast{"inputs": {"0": ["int32_t"]}}')
    assert not untyped.operators["ai.onnx", 13, "Cast"]  # all types, and so it stays


def test_opsets_of_one_line_share_nothing_else() -> None:
    """Theirs puts an operator of a later line into every opset of the first."""
    assert ("ai.onnx", 11, "Mul") not in parsed("ai.onnx;11,12;Add", "ai.onnx;12;Mul").operators


def test_allowed_types_leave_operators_of_two_types_alone() -> None:
    """Theirs looks for the whole registration name `float_int64_t` among the types, and drops the loss."""
    text = "!globally_allowed_types;float,int32_t,int64_t,bool\nai.onnx;13;SoftmaxCrossEntropyLoss,Gemm"
    given = parse_config(text, "f")
    assert given.allowed == {"float", "int32_t", "int64_t", "bool"}
    assert ("ai.onnx", 13, "SoftmaxCrossEntropyLoss") in given.operators
    wanted = Requirements(
        {("ai.onnx", 13, "SoftmaxCrossEntropyLoss"): Types(), ("ai.onnx", 13, "Gemm"): FLOAT}
    )
    assert [
        f
        for f in missing_operators(wanted, text, "f")
        if "SoftmaxCrossEntropyLoss" in f and "two types at once" in f
    ]
    refused = missing_operators(
        Requirements({("ai.onnx", 13, "Gemm"): FLOAT}), text.replace("float,", ""), "f"
    )
    assert len(refused) == 1 and "float is not allowed" in refused[0]


def test_a_comment_ends_the_line() -> None:
    """Theirs makes it a part of the operator's name."""
    assert set(parsed("ai.onnx;13;Add # x,Mul").operators) == {("ai.onnx", 13, "Add")}


def test_types_of_every_operator_are_kept() -> None:
    """Theirs drops those of operators that it has no table for."""
    found = parsed('com.microsoft;1;ReluGrad{"inputs": {"0": ["float"]}}')
    assert found.operators["com.microsoft", 1, "ReluGrad"] == FLOAT


def test_types_are_told_by_opset_and_written_for_all() -> None:
    """Theirs knows no opsets here: each line must have the types of all, or the last one wins."""
    found = parsed(
        'ai.onnx;9;Gemm{"inputs": {"0": ["double"]}}', 'ai.onnx;13;Gemm{"inputs": {"0": ["float"]}}'
    )
    assert found.operators["ai.onnx", 9, "Gemm"].names == {"double"}
    written = lines_of(render_config(found, []))
    assert len(written) == 2 and all('["double", "float"]' in line for line in written)


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


WRONG = [
    ("ai.onnx;13", "line 1"),
    ("ai.onnx;x;Gemm", "numbers"),
    ("ai.onnx;13;Gemm{", "JSON"),
    ('ai.onnx;13;Gemm{"inputs": {"0": ["flaot"]}}', "flaot"),
    ('ai.onnx;13;Gemm{"in": 1}', "in"),
    ('ai.onnx;13;Gemm{"inputs": 3}', "inputs"),
    ("ai.onnx;13;Gemm{}x", "commas"),
    ("ai.onnx;13;,Gemm", "commas"),
    ("!globally_allowed_types;float\n!globally_allowed_types;bool", "second time"),
    ("!globally_allowed_types;complex64", "complex64"),
    ('!globally_allowed_types;float\nai.onnx;13;Gemm{"inputs": {"0": ["float"]}}', "exclude each other"),
]


@pytest.mark.parametrize("text,word", WRONG, ids=lambda v: v[:30])
def test_damage_is_named(text: str, word: str) -> None:
    with pytest.raises(BadInput, match="f.config") as raised:
        parse_config(text, "f.config")
    assert word in str(raised.value)


# ------------------------------------------------------------------------------------------------ several models


def test_types_are_united_over_models() -> None:
    """Pasting two files together loses kernels in ONNX Runtime; here nothing is lost, in any order."""
    folders = [GOLDEN / "dense", GOLDEN / "embedding", GOLDEN / "conv"]
    together = requirements(folders)
    assert together == requirements(folders[::-1])
    text = render_config(together, [])
    assert len({line.rsplit(";", 1)[0] for line in lines_of(text)}) == len(lines_of(text))
    for folder in folders:
        assert not missing_operators(requirements([folder]), text, "f")
        alone = requirements([folder])
        for (domain, _, name), types in alone.operators.items():
            assert types.names <= together.types_of(domain, name).names or not types


def test_an_operator_without_types_needs_them_all() -> None:
    typed, untyped = parsed('ai.onnx;13;Gemm{"inputs": {"0": ["float"]}}'), parsed("ai.onnx;13;Gemm")
    assert not union([typed, untyped]).operators["ai.onnx", 13, "Gemm"]
    assert not union([untyped, typed]).operators["ai.onnx", 13, "Gemm"]
    assert not union([untyped, typed, typed]).operators["ai.onnx", 13, "Gemm"]


# ------------------------------------------------------------------------------------------------ checking


def test_a_file_of_its_own_lacks_nothing(minbuild: Command, tmp_path: Path) -> None:
    path = tmp_path / "required_operators_and_types.config"
    assert minbuild("ort-config", FREE, "-o", path).code == 0
    said = minbuild("ort-config", FREE, "--check", path)
    assert said.code == 0 and "holds everything" in said.out
    assert minbuild("ort-config", FREE).out == path.read_text()


def test_what_is_missing_is_told_with_its_cure(minbuild: Command, tmp_path: Path) -> None:
    path = tmp_path / "small.config"
    assert minbuild("ort-config", FREE, "-o", path).code == 0
    said = minbuild("ort-config", FREE, GOLDEN / "conv", "--check", path)
    assert said.code == 3 and "Conv (domain ai.onnx, version 11): is missing. Add the line" in said.err
    text = path.read_text().replace('Gemm{"inputs": {"0": ["float"]}}', 'Gemm{"inputs": {"0": ["double"]}}')
    assert [
        f
        for f in missing_operators(requirements([FREE]), text, "f")
        if "Gemm" in f and "lacks float for input 0" in f
    ]


def test_versions_reach_until_the_next(minbuild: Command) -> None:
    wanted = Requirements({("ai.onnx", 13, "Relu"): FLOAT})
    assert "opset 13 only" in "".join(
        missing_operators(Requirements({("ai.onnx", 14, "Relu"): FLOAT}), "ai.onnx;13;Relu", "f")
    )
    assert not missing_operators(wanted, "ai.onnx;13;Relu", "f")
    assert missing_operators(wanted, "ai.onnx;14;Relu", "f") and missing_operators(
        wanted, "ai.onnx;12;Relu", "f"
    )
    gemm = Requirements({("ai.onnx", 13, "Gemm"): FLOAT})
    assert not missing_operators(gemm, "ai.onnx;21;Gemm", "f")  # the version that opset 21 runs is that of 13


def test_what_their_reader_loses_is_told() -> None:
    wanted = Requirements({("ai.onnx", 13, "Gemm"): FLOAT})
    twice = 'ai.onnx;13;Gemm{"inputs": {"0": ["float"]}}\nai.onnx;13;Gemm{"inputs": {"0": ["double"]}}'
    assert ["keeps those of the last line" in f for f in missing_operators(wanted, twice, "f")] == [True]
    assert not missing_operators(wanted, twice.replace("double", "float"), "f")
    assert ["a line of its own" in f for f in missing_operators(wanted, "ai.onnx;13;Gemm # dense", "f")] == [
        True
    ]
    assert not missing_operators(wanted, "!no_ops_specified_means_all_ops_are_required", "f")


def test_integers_that_are_always_there_need_no_mention() -> None:
    integer = Types({("inputs", 0): frozenset({"int64_t"})})
    text = 'ai.onnx;14;Add{"inputs": {"0": ["float"]}},Relu{"inputs": {"0": ["float"]}}'
    assert not missing_operators(Requirements({("ai.onnx", 14, "Add"): integer}), text, "f")
    assert missing_operators(Requirements({("ai.onnx", 14, "Relu"): integer}), text, "f")


def test_wrong_requests(minbuild: Command, tmp_path: Path) -> None:
    assert minbuild("ort-config", FREE, "--style", "odd").code == 2
    assert minbuild("ort-config", FREE, "--check", tmp_path / "none").code == 2
    assert minbuild("ort-config", FREE, "-o", tmp_path / "no" / "such").code == 2
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert "is not text" in minbuild("ort-config", FREE, "--check", tmp_path / "bytes").err


def test_another_configuration_can_be_added(minbuild: Command, tmp_path: Path) -> None:
    (tmp_path / "more").write_text("ai.onnx;13;Erf\n")
    assert "Erf" in minbuild("ort-config", FREE, "--ort-config", tmp_path / "more").out
