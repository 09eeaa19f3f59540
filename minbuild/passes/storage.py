"""Whose bytes are whose: questions about a Procedure that several passes ask."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from minbuild.model import Call, Procedure
from minbuild.ops import Registry


def root(alias: Mapping[str, str], name: str) -> str:
    """The value that owns the bytes of `name`."""
    while name in alias:
        name = alias[name]
    return name


def reads(call: Call) -> Iterable[str]:
    """The values a call is given."""
    return (name for name in call.inputs if name)


def writes(call: Call) -> Iterable[str]:
    """The values a call produces."""
    return (name for name in call.outputs if name)


def last_uses(procedure: Procedure) -> dict[str, int]:
    """For every storage root the last call that touches it; outputs of the procedure are used after the last call."""
    last: dict[str, int] = {}
    for index, call in enumerate(procedure.calls):
        for name in (*reads(call), *writes(call)):
            last[root(procedure.alias, name)] = index
    for name in procedure.outputs:
        last[root(procedure.alias, name)] = len(procedure.calls)
    return last


def readers(procedure: Procedure) -> dict[str, list[int]]:
    """For every storage root the calls that read it; procedure outputs count as a reader at the end."""
    found: dict[str, list[int]] = defaultdict(list)
    for index, call in enumerate(procedure.calls):
        for name in reads(call):
            found[root(procedure.alias, name)].append(index)
    for name in procedure.outputs:
        found[root(procedure.alias, name)].append(len(procedure.calls))
    return found


def has_effect(call: Call, procedure: Procedure, registry: Registry) -> bool:
    """Whether a call changes something that outlives the procedure's own values."""
    op = registry.ops[call.op]
    kept = {procedure.values[root(procedure.alias, name)].role for name in writes(call)}
    updated = {
        procedure.values[call.inputs[i]].role for i in op.updates if i < len(call.inputs) and call.inputs[i]
    }
    return any(role.persists for role in kept | updated)
