"""The grammar of ONNX Runtime's reduced-build configurations: everything of it is read, and damage is named."""

from __future__ import annotations

import pytest
from ort_configs import lines_of, parsed

from minbuild.compat.ort_config.check import missing_operators
from minbuild.compat.ort_config.grammar import parse_config, render_config
from minbuild.compat.ort_config.requirements import Requirements, Types
from minbuild.errors import BadInput

FLOAT = Types({("inputs", 0): frozenset({"float"})})


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
