"""Alias analysis: the value that owns the storage of another. Rewrites ask `effects.Effects` instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minbuild.ir import Call


def root(alias: Mapping[str, str], name: str) -> str:
    """The value that owns the bytes of `name`: the end of its chain of aliases."""
    while name in alias:
        name = alias[name]
    return name


def views_of(alias: Mapping[str, str], owner: str) -> list[str]:
    """Names of the values that `alias` stores in the bytes of `owner`."""
    return [view for view in alias if root(alias, view) == owner]


def present_inputs(call: Call) -> Iterable[str]:
    """Names of the inputs that the call has, by the names it reads them by."""
    return (name for name in call.inputs if name)


def present_outputs(call: Call) -> Iterable[str]:
    """Names of the outputs that the call has, by the names it writes them by."""
    return (name for name in call.outputs if name)
