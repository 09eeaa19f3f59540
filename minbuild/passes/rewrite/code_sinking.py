"""Code sinking: schedules a call as late as possible when its inputs are smaller than its outputs.

Of two branches that meet in a sum, the gradient of the second one is otherwise live, at the size of the larger side,
while the gradient of the first one is computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from minbuild.ir import Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.representative_sizes import planned_bytes
from minbuild.passes.analysis.schedule import Schedule
from minbuild.passes.rewrite.rematerialization import SHORTEST_GAP, dropped_values


def sink_code(procedure: Procedure, registry: Registry) -> Procedure:
    """The same calls; each one without side effects stands right before the first that depends on it, if that saves
    memory."""
    work = _Sinking(procedure, registry)
    for index in reversed(range(len(procedure.calls))):
        work.sink(index)
    return replace(procedure, calls=tuple(procedure.calls[i] for i in work.schedule))


class _Sinking:
    """One procedure, scheduled from its last call to its first. Calls are named by their original index."""

    def __init__(self, procedure: Procedure, registry: Registry) -> None:
        self.calls = procedure.calls
        self.registry = registry
        self.effects = effects = Effects(procedure, registry)
        self.sizes = planned_bytes(v for v in procedure.values.values() if v.role is Role.TEMPORARY)
        self.rematerialized = dropped_values(procedure, registry)
        self.returned = effects.owners(procedure.outputs)
        self.schedule = Schedule(len(self.calls))
        # Of the calls scheduled so far, by the storage they read and change.
        self.later_reads: dict[str, list[int]] = defaultdict(list)
        self.later_writes: dict[str, list[int]] = defaultdict(list)

    def sink(self, index: int) -> None:
        """Schedules the call at `index`, the last one that is not scheduled yet."""
        call = self.calls[index]
        read, made, changed = (
            self.effects.reads(call),
            self.effects.produces(call),
            self.effects.mutates(call),
        )
        size = sum(self.sizes.get(n, 0) for n in made)  # the most that can be saved
        needed = self.first_dependent(read, made) if size and not changed and self.is_movable(made) else None
        stays = needed is None or self.schedule.previous(needed) == index
        if needed is not None and not stays and size > self.loss(read, needed):
            self.schedule.move_before(index, needed)
        for owner in read:
            self.later_reads[owner].append(index)
        for owner in made | changed:
            self.later_writes[owner].append(index)

    def is_movable(self, made: Iterable[str]) -> bool:
        """True if a call only makes temporaries and adds to gradients, of storage that it `made`."""
        return all(self.effects.role(owner) in (Role.TEMPORARY, Role.GRADIENT) for owner in made)

    def first_dependent(self, read: frozenset[str], made: frozenset[str]) -> int | None:
        """The first later call that must stay behind one that `read` and `made` these, and changes nothing else."""
        later = [i for owner in made for i in self.later_reads.get(owner, ())]
        later += [i for owner in made | read for i in self.later_writes.get(owner, ())]
        return min(later, key=self.schedule.key, default=None)

    def loss(self, read: frozenset[str], needed: int) -> int:
        """Bytes that are live between the old place of a call that `read` these and the new one, before the call at
        `needed`, for this call alone."""
        sources = read - self.returned
        alone = (owner for owner in sources if owner in self.sizes and not self.is_kept(owner, needed))
        return sum(self.sizes[n] for n in alone)

    def is_kept(self, owner: str, needed: int) -> bool:
        """True if the call at `needed` or one behind it reads these bytes and no call recomputes them for it."""
        key = self.schedule.key
        start, near = key(needed), self.schedule.key_behind(needed, SHORTEST_GAP)
        return any(
            key(index) >= start and (key(index) < near or not self.is_recomputed(owner, index))
            for index in self.later_reads.get(owner, ())
        )

    def is_recomputed(self, owner: str, index: int) -> bool:
        """True if the call at `index` reads these bytes only by names that are recomputed for it."""
        names = (name for name in self.calls[index].inputs if name and self.effects.owner(name) == owner)
        return self.rematerialized.issuperset(names)
