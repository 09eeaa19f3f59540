"""Configurations of several models, and checks of one that exists."""

from __future__ import annotations

from pathlib import Path

from commands import FREE, GOLDEN, Command, command_fixture  # noqa: F401
from ort_configs import lines_of, parsed

from minbuild.compat.ort_config.check import missing_operators
from minbuild.compat.ort_config.collect import requirements
from minbuild.compat.ort_config.grammar import render_config
from minbuild.compat.ort_config.requirements import Requirements, Types, union

FLOAT = Types({("inputs", 0): frozenset({"float"})})


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
