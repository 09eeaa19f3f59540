"""Calls wait until somebody needs their results, where what they read takes less room than what they make.

Of two branches that meet again in a sum, the second one's gradient would otherwise wait, at the size of the larger
side, while the first one's is worked out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from minbuild.model import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.recompute import SHORTEST_GAP, dropped_values
from minbuild.passes.storage import planned_bytes, reads, root, writes


def delay_calls(procedure: Procedure, registry: Registry) -> Procedure:
    """The same calls; each pure one right before the first call that depends on it, if that saves memory."""
    calls = list(procedure.calls)
    sizes = planned_bytes(v for v in procedure.values.values() if v.role is Role.TEMPORARY)
    dropped = dropped_values(procedure, registry)
    for index in range(len(calls) - 1, -1, -1):
        call = calls[index]
        needed = (
            _first_conflict(procedure, registry, calls, index)
            if _movable(procedure, registry, call)
            else None
        )
        if needed is not None and _gain(procedure, calls, sizes, dropped, index, needed) > 0:
            calls.insert(needed - 1, calls.pop(index))
    return replace(procedure, calls=tuple(calls))


def _movable(procedure: Procedure, registry: Registry, call: Call) -> bool:
    """Whether all the call does is make temporaries and add to gradients."""
    made = {procedure.values[root(procedure.alias, name)].role for name in writes(call)}
    return not registry.ops[call.op].updates and made <= {Role.TEMPORARY, Role.GRADIENT}


def _first_conflict(
    procedure: Procedure, registry: Registry, calls: Sequence[Call], index: int
) -> int | None:
    """The first later call that must stay behind the one at `index`."""
    made = {root(procedure.alias, name) for name in writes(calls[index])}
    read = {root(procedure.alias, name) for name in reads(calls[index])}
    for later in range(index + 1, len(calls)):
        call = calls[later]
        updated = [call.inputs[i] for i in registry.ops[call.op].updates if i < len(call.inputs)]
        changed = {root(procedure.alias, name) for name in (*writes(call), *updated) if name}
        if made & {root(procedure.alias, name) for name in reads(call)} or (made | read) & changed:
            return later
    return None


def _gain(
    procedure: Procedure,
    calls: Sequence[Call],
    sizes: Mapping[str, int],
    dropped: AbstractSet[str],
    index: int,
    needed: int,
) -> int:
    """Bytes less that are alive while the call at `index` waits for the one at `needed`."""
    made = {root(procedure.alias, name) for name in writes(calls[index])}
    kept = set(procedure.outputs)
    for later in range(needed, len(calls)):
        soon = later < needed + SHORTEST_GAP
        kept |= {name for name in reads(calls[later]) if soon or name not in dropped}
    waiting = {root(procedure.alias, name) for name in reads(calls[index])}
    waiting -= {root(procedure.alias, name) for name in kept}
    return sum(sizes.get(name, 0) for name in made) - sum(sizes.get(name, 0) for name in waiting)
