"""Pairs of loops: one that saves values of all its rounds, and one that reads them from the last round to the first, as
the gradient of a loop does. `loop_pairs` finds those whose values a second run of the first loop can compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from minbuild.ir import Procedure, Role, Value
from minbuild.ir.dims import Dim, divide_exactly, product
from minbuild.ops import Registry
from minbuild.ops.recurrent.loop_control import SKIP_ROUND
from minbuild.passes.analysis.effects import Effects, updates_in_place


@dataclass(frozen=True)
class LoopPair:
    """The ranges of calls of both loops, and their number of rounds. `stacks` are the values that one saves for the
    other, each with the position of the call that makes its slices; the calls at `again` compute these slices and the
    states that they start from; `carried` are the owners of those states."""

    forward: range
    backward: range
    rounds: Dim
    stacks: Mapping[str, int]
    again: tuple[int, ...]
    carried: tuple[str, ...]


def loop_pairs(procedure: Procedure, registry: Registry) -> Iterator[LoopPair]:
    """The pairs among the loops of `procedure`, whose operators `registry` has."""
    if len(procedure.loops) > 1:
        search = _Search(procedure, registry)
        for forward, backward in combinations(procedure.loops, 2):
            yield from search.pairs(forward, backward)


def count_of(value: Value) -> Dim:
    """The number of elements."""
    return product(value.type.shape or ())


class _Search:
    """The pairs of loops of one procedure."""

    def __init__(self, procedure: Procedure, registry: Registry) -> None:
        self.calls, self.values, self.registry = procedure.calls, procedure.values, registry
        self.effects = effects = Effects(procedure, registry)
        self.results = effects.owners(procedure.outputs)
        self.read: dict[str, list[tuple[int, str]]] = {}  # by owner: the call, and the name that it reads
        self.made: dict[str, list[tuple[int, str]]] = {}
        for index, call in enumerate(procedure.calls):
            for names, table in ((call.inputs, self.read), (call.outputs, self.made)):
                for name in filter(None, names):
                    table.setdefault(effects.owner(name), []).append((index, name))

    def pairs(self, forward: range, backward: range) -> Iterator[LoopPair]:
        if any(self.calls[i].op == SKIP_ROUND for loop in (forward, backward) for i in loop):
            return
        groups: dict[Dim, dict[str, int]] = {}
        for stack, made in self.made.items():
            rounds = self.rounds_of(stack, forward, backward)
            if rounds is not None:
                groups.setdefault(rounds, {})[stack] = made[0][0]
        for rounds, stacks in groups.items():
            found = self.computed(forward, backward, rounds, stacks)
            if found is not None:
                yield LoopPair(forward, backward, rounds, stacks, *found)

    def rounds_of(self, stack: str, forward: range, backward: range) -> Dim | None:
        """The number of rounds of `stack`, where nothing touches it but one call of the loop `forward`, which makes a
        slice, calls behind it, and calls of the loop `backward`, which read the slices the other way."""
        values, ((at, name), *more) = self.values, self.made[stack]
        one = values[name]
        if at not in forward or more or not one.sample or self.calls[at].accumulate:
            return None
        if values[stack].role is not Role.TEMPORARY or stack in self.results:
            return None
        names, saved = {forward: {name}, backward: set()}, False
        for index, reader in self.read.get(stack, ()):
            view, behind = values[reader], index in backward
            turned = view.backward is not one.backward
            if not view.sample or count_of(view) != count_of(one) or turned is not behind:
                return None
            if not behind and not (index in forward and index > at):
                return None
            names[backward if behind else forward].add(reader)
            saved |= behind
        apart = names[forward].isdisjoint(names[backward])
        return divide_exactly(count_of(values[stack]), count_of(one)) if saved and apart else None

    def computed(
        self, forward: range, backward: range, rounds: Dim, stacks: Mapping[str, int]
    ) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        """The calls of the loop `forward` that make `stacks`, and the states that they start from; None where these
        calls cannot run a second time in the loop `backward`."""
        carried: dict[str, None] = {}
        again: set[int] = set()
        left = list(stacks.values())
        while left:
            index = left.pop()
            if index in again:
                continue
            again.add(index)
            call = self.calls[index]
            if call.accumulate or updates_in_place(call, self.registry):
                return None
            for name in filter(None, call.inputs):
                owner, value = self.effects.owner(name), self.values[name]
                made = [i for i, _ in self.made.get(owner, ()) if i in forward]
                if not made:
                    whole = rounds if value.sample else 1
                    if value.sample and count_of(self.values[owner]) != count_of(value) * whole:
                        return None
                    if self.changes(owner, range(forward.start, backward.stop)):
                        return None
                    continue
                before = made[0] < index
                if len(made) != 1 or self.values[owner].role is not Role.TEMPORARY:
                    return None
                if not before and value.sample:
                    return None
                carried |= {} if before else {owner: None}
                left.append(made[0])
        return tuple(sorted(again)), tuple(carried)

    def changes(self, owner: str, calls: range) -> bool:
        return any(owner in self.effects.writes(self.calls[i]) for i in calls)
