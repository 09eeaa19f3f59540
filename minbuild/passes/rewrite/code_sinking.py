"""Calls wait until somebody needs their results, where what they read takes less room than what they make.

Of two branches that meet again in a sum, the second one's gradient would otherwise wait, at the size of the larger
side, while the first one's is worked out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from minbuild.ir import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.analysis.aliases import planned_bytes, reads, root, writes
from minbuild.passes.rewrite.rematerialization import SHORTEST_GAP, dropped_values


def sink_code(procedure: Procedure, registry: Registry) -> Procedure:
    """The same calls; each pure one right before the first call that depends on it, if that saves memory."""
    calls = list(procedure.calls)
    waiting = _Waiting(procedure, registry)
    for index in range(len(calls) - 1, -1, -1):
        call = calls[index]
        needed = (
            _first_conflict(procedure, registry, calls, index)
            if _movable(procedure, registry, call)
            else None
        )
        if needed is not None and waiting.gain(call, needed) > 0:
            calls.insert(needed - 1, calls.pop(index))
            waiting.follow(calls, index, needed)
    return replace(procedure, calls=tuple(calls))


def _movable(procedure: Procedure, registry: Registry, call: Call) -> bool:
    """Whether all the call does is make temporaries and add to gradients."""
    made = {procedure.values[root(procedure.alias, name)].role for name in writes(call)}
    return not registry.ops[call.op].mutates and made <= {Role.TEMPORARY, Role.GRADIENT}


def _first_conflict(
    procedure: Procedure, registry: Registry, calls: Sequence[Call], index: int
) -> int | None:
    """The first later call that must stay behind the one at `index`."""
    made = {root(procedure.alias, name) for name in writes(calls[index])}
    read = {root(procedure.alias, name) for name in reads(calls[index])}
    for later in range(index + 1, len(calls)):
        call = calls[later]
        updated = [call.inputs[i] for i in registry.ops[call.op].mutates if i < len(call.inputs)]
        changed = {root(procedure.alias, name) for name in (*writes(call), *updated) if name}
        if made & {root(procedure.alias, name) for name in reads(call)} or (made | read) & changed:
            return later
    return None


class _Waiting:
    """What a call's operands cost while it waits: who else reads them, and where those calls stand by now."""

    def __init__(self, procedure: Procedure, registry: Registry) -> None:
        self.alias = procedure.alias
        self.sizes = planned_bytes(v for v in procedure.values.values() if v.role is Role.TEMPORARY)
        self.dropped = dropped_values(procedure, registry)
        self.returned = {root(self.alias, name) for name in procedure.outputs}
        self.place: dict[int, int] = {}  # identity of a call -> its index
        self.follow(procedure.calls, 0, len(procedure.calls))
        self.readers: dict[str, list[tuple[str, Call]]] = defaultdict(list)
        for call in procedure.calls:
            for name in reads(call):
                self.readers[root(self.alias, name)].append((name, call))

    def follow(self, calls: Sequence[Call], start: int, stop: int) -> None:
        """Takes note of where the calls from `start` on stand."""
        self.place.update((id(calls[i]), i) for i in range(start, stop))

    def gain(self, call: Call, needed: int) -> int:
        """Bytes less that are alive while `call` waits for the one at `needed`."""
        made = {root(self.alias, name) for name in writes(call)}
        waiting = {root(self.alias, name) for name in reads(call)} - self.returned
        alone = (name for name in waiting if not self._kept(name, needed))
        return sum(self.sizes.get(n, 0) for n in made) - sum(self.sizes.get(n, 0) for n in alone)

    def _kept(self, owner: str, needed: int) -> bool:
        """Whether a call from index `needed` on reads these bytes, and nobody makes them anew for it."""
        for name, call in self.readers[owner]:
            place = self.place[id(call)]
            if place >= needed and (place < needed + SHORTEST_GAP or name not in self.dropped):
                return True
        return False
