"""Hoisting of parameter updates: variables are updated as soon as their gradients exist, which frees the gradients.

A call behind the backward pass that frees at least as many bytes of temporaries as it makes, and that contributes to
nothing but new values of variables, moves up behind the last call that reads or writes what it changes. Calls that it
depends on and that contribute to nothing else, such as a count of steps, move along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minbuild.ir import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.liveness import last_uses
from minbuild.passes.analysis.representative_sizes import planned_bytes
from minbuild.passes.rewrite.loss_check import CHECK


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A call with the storage it reads and writes. `hoistable` calls move up by themselves, `dependency` calls with one
    that depends on them."""

    call: Call
    read: frozenset[str]
    written: frozenset[str]
    dependency: bool = False
    hoistable: bool = False


def hoist_parameter_updates(procedure: Procedure, registry: Registry) -> Procedure:
    """The same calls, those that update variables as early as they may be."""
    effects = Effects(procedure, registry)
    updating = _updating(procedure, effects)
    if not updating:
        return procedure
    calls = _marked(procedure, effects, updating)
    loops = procedure.loops
    for index in range(len(calls)):
        if calls[index].hoistable:
            moved, place = _group(calls, index)
            place = next((loop.stop for loop in loops if loop.start < place < loop.stop), place)
            group = [calls[i] for i in moved]
            chosen = set(moved)
            rest = [calls[i] for i in range(place, index + 1) if i not in chosen]
            calls[place : index + 1] = [*group, *rest]
            loops = tuple(_behind(loop, moved) if place <= loop.start < index else loop for loop in loops)
    return replace(procedure, calls=tuple(c.call for c in calls), loops=loops)


def read_by_updates(procedure: Procedure, registry: Registry) -> frozenset[str]:
    """Temporaries that nothing reads but updates of persistent values."""
    effects = Effects(procedure, registry)
    calls = procedure.calls
    made = {name for index in _updating(procedure, effects) for name in effects.writes(calls[index])}
    return frozenset(name for name in made if procedure.values[name].role is Role.TEMPORARY)


def _group(calls: Sequence[_Candidate], index: int) -> tuple[list[int], int]:
    """The calls that move up together with the one at `index`, in order, and the first place where they may stand:
    behind the last call that has to stay before them. No update comes before the loss is known to be finite."""
    moved = [index]
    read, written = set(calls[index].read), set(calls[index].written)
    for i in reversed(range(index)):
        each = calls[i]
        if (
            each.call.op == CHECK
            or not each.written.isdisjoint(read)
            or not each.written.isdisjoint(written)
            or not each.read.isdisjoint(written)
        ):
            if not each.dependency:
                return moved[::-1], i + 1
            moved.append(i)
            read |= each.read
            written |= each.written
    return moved[::-1], 0


def _behind(loop: range, moved: Sequence[int]) -> range:
    """The loop when calls from positions behind it stand before it."""
    by = sum(i >= loop.stop for i in moved)
    return range(loop.start + by, loop.stop + by)


def _marked(procedure: Procedure, effects: Effects, updating: Sequence[int]) -> list[_Candidate]:
    """The calls, with marks at those of the `updating` ones that make no more temporaries than they use up."""
    marked = [_Candidate(call, effects.reads(call), effects.writes(call)) for call in procedure.calls]
    sizes = planned_bytes(v for v in procedure.values.values() if v.role is Role.TEMPORARY)
    last = last_uses(procedure, effects)

    def bytes_of(names: frozenset[str]) -> int:
        return sum(sizes.get(name, 0) for name in names)

    for index in updating:
        call = marked[index]
        freed = bytes_of(frozenset(name for name in call.read if last[name] == index))
        if bytes_of(call.written - call.read) <= freed:
            marked[index] = replace(call, dependency=True, hoistable=freed > 0)
    return marked


def _updating(procedure: Procedure, effects: Effects) -> list[int]:
    """Positions of the calls outside of loops whose results nobody reads but updates of what persists. Gradients of
    artifacts, which are added to buffers, are left where they are."""
    values = procedure.values
    needed = set(effects.owners(procedure.outputs))  # by other calls
    inside = {index for loop in procedure.loops for index in loop}
    found = []
    for index in reversed(range(len(procedure.calls))):
        call = procedure.calls[index]
        roles = {name: values[name].role for name in effects.writes(call)}
        read_on = any(role is Role.TEMPORARY and name in needed for name, role in roles.items())
        if read_on or Role.GRADIENT in roles.values() or index in inside:
            needed |= effects.reads(call)
        else:
            found.append(index)
    return found
