"""Alias analysis: the value that owns the storage of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minbuild.ir import Call


def root(alias: Mapping[str, str], name: str) -> str:
    """The value that owns the bytes of `name`: the end of its chain of aliases."""
    while name in alias:
        name = alias[name]
    return name


def reads(call: Call) -> Iterable[str]:
    """Names of the inputs that are present."""
    return (name for name in call.inputs if name)


def writes(call: Call) -> Iterable[str]:
    """Names of the outputs that are present."""
    return (name for name in call.outputs if name)
