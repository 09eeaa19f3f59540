"""Variables are updated as soon as their gradients are there, so that these need not wait for one another.

What an algorithm says after the backward pass runs between its steps: a call that uses up temporaries, makes no more
than that, and leads to nothing but new values of variables moves up, behind the last call that reads or writes what it
changes. What else it needs and nothing else waits for, such as a count of steps, comes along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minbuild.ir import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.analysis.aliases import last_uses, planned_bytes, reads, root, writes
from minbuild.passes.rewrite.loss_check import CHECK


@dataclass(frozen=True)
class _Touching:
    """A call, the storage it reads, and what it changes. One that `follows` may move up with what needs it; one that
    `leads` moves by itself."""

    call: Call
    read: frozenset[str]
    written: frozenset[str]
    follows: bool = False
    leads: bool = False

    def precedes(self, other: _Touching) -> bool:
        """Whether the other call must stay behind this one. No update comes before the loss is known to be finite."""
        shared = self.written & (other.read | other.written) or self.read & other.written
        return bool(shared) or self.call.op == CHECK


def hoist_parameter_updates(procedure: Procedure, registry: Registry) -> Procedure:
    """The same calls, those that update variables as early as they may be."""
    calls = _marked(procedure, [_touching(procedure, registry, call) for call in procedure.calls])
    loops = procedure.loops
    for index in range(len(calls)):
        if calls[index].leads:
            moved, place = _group(calls, index)
            place = next((loop.stop for loop in loops if loop.start < place < loop.stop), place)
            group = [calls[i] for i in moved]
            rest = [calls[i] for i in range(place, index + 1) if i not in moved]
            calls[place : index + 1] = [*group, *rest]
            loops = tuple(_behind(loop, moved) if place <= loop.start < index else loop for loop in loops)
    return replace(procedure, calls=tuple(c.call for c in calls), loops=loops)


def read_by_updates(procedure: Procedure, registry: Registry) -> frozenset[str]:
    """The temporaries that calls make of which nothing comes but updates of what persists."""
    calls = [_touching(procedure, registry, call) for call in procedure.calls]
    made = {name for index in _updating(procedure, calls) for name in calls[index].written}
    return frozenset(name for name in made if procedure.values[name].role is Role.TEMPORARY)


def _group(calls: Sequence[_Touching], index: int) -> tuple[list[int], int]:
    """The calls that move up together with the one at `index`, in order, and the first place where they may stand."""
    moved = [index]
    for i in reversed(range(index)):
        if any(calls[i].precedes(calls[k]) for k in moved):
            if not calls[i].follows:
                return moved[::-1], i + 1
            moved.append(i)
    return moved[::-1], 0


def _behind(loop: range, moved: Sequence[int]) -> range:
    """The loop when calls from positions behind it stand before it."""
    by = sum(i >= loop.stop for i in moved)
    return range(loop.start + by, loop.stop + by)


def _touching(procedure: Procedure, registry: Registry, call: Call) -> _Touching:
    updated = [call.inputs[i] for i in registry.ops[call.op].mutates if i < len(call.inputs)]
    written = {root(procedure.alias, name) for name in (*writes(call), *updated) if name}
    return _Touching(call, frozenset(root(procedure.alias, n) for n in reads(call)), frozenset(written))


def _marked(procedure: Procedure, calls: Sequence[_Touching]) -> list[_Touching]:
    """The calls, with marks at those that only lead to updates and make no more temporaries than they use up."""
    sizes = planned_bytes(v for v in procedure.values.values() if v.role is Role.TEMPORARY)
    last = last_uses(procedure)

    def bytes_of(names: frozenset[str]) -> int:
        return sum(sizes.get(name, 0) for name in names)

    marked = list(calls)
    for index in _updating(procedure, calls):
        call = calls[index]
        freed = bytes_of(frozenset(name for name in call.read if last[name] == index))
        if bytes_of(call.written - call.read) <= freed:
            marked[index] = replace(call, follows=True, leads=freed > 0)
    return marked


def _updating(procedure: Procedure, calls: Sequence[_Touching]) -> list[int]:
    """Positions of the calls outside of loops whose results nobody reads but updates of what persists. Gradients of
    artifacts, which are added to buffers, are left where they are."""
    values = procedure.values
    needed = {root(procedure.alias, name) for name in procedure.outputs}  # by other calls
    found = []
    for index in reversed(range(len(calls))):
        call = calls[index]
        roles = {name: values[name].role for name in call.written}
        read_on = any(role is Role.TEMPORARY and name in needed for name, role in roles.items())
        if read_on or Role.GRADIENT in roles.values() or any(index in loop for loop in procedure.loops):
            needed |= call.read
        else:
            found.append(index)
    return found
