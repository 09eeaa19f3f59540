"""Configurations of ONNX Runtime's reduced build, as text and as parsed."""

from __future__ import annotations

from commands import FREE, GOLDEN, SMALL, Command, command_fixture, copy_of  # noqa: F401

from minbuild.compat.ort_config.grammar import parse_config
from minbuild.compat.ort_config.requirements import Requirements


def parsed(*lines: str) -> Requirements:
    return parse_config("\n".join(lines), "f.config")


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]
