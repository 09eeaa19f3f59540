"""Whose bytes are whose: questions about a Procedure that several passes ask."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from minbuild.ir import Call, Procedure, Value
from minbuild.ir.dims import Dim, evaluate, product, symbols_in
from minbuild.ops import Registry

PLANNED_SIZES = (1, 8, 32)  # every free dimension at these sizes: what the arena layout is good for


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
        procedure.values[call.inputs[i]].role for i in op.mutates if i < len(call.inputs) and call.inputs[i]
    }
    return any(role.persists for role in kept | updated)


def planned_bytes(values: Iterable[Value]) -> dict[str, int]:
    """Bytes of every value when each free dimension has the largest of the planned sizes."""
    return {v.name: planned_size(product(v.type.shape or ()) * v.type.element.size) for v in values}


@lru_cache(maxsize=1 << 16)
def planned_size(dim: Dim) -> int:
    """A dimension when each free one has the largest of the planned sizes."""
    return evaluate(dim, dict.fromkeys(symbols_in(dim), PLANNED_SIZES[-1]))


def lifetimes(
    accesses: Sequence[Iterable[str]], walked: Iterable[str], loops: Iterable[range]
) -> dict[str, tuple[int, int]]:
    """The first and last step at which each name of `accesses` (per step) is alive. What is made and used up within one
    round of a loop lives between these steps; everything else that a loop touches lives through all of its rounds, and
    so do the names of `walked`, of which each round sees one sample."""
    alive: dict[str, tuple[int, int]] = {}
    for step, names in enumerate(accesses):
        for name in names:
            alive[name] = (alive.get(name, (step,))[0], step)
    whole = set(walked)
    for loop in loops:
        for name in {name for step in loop for name in accesses[step]}:
            first, last = alive[name]
            if name in whole or first < loop.start or last >= loop.stop:
                alive[name] = (min(first, loop.start), max(last, loop.stop - 1))
    return alive
