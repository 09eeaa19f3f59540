"""Recomputation: the memory and the time of a training step that repeats calls of its forward pass.

Of the forward calls that can run a second time, those that are kept leave their results in memory until gradients read
them; all others run again right before the first gradient that needs them. `Recomputation` simulates the step for any
choice of kept calls: the bytes that are live at every position, and the seconds that the repeated calls take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from minbuild.ir import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.analysis.call_costs import aligned_bytes, costs_of
from minbuild.passes.analysis.channel_slices import inner_values, loop_over_slices, tiles_of
from minbuild.passes.analysis.effects import Accesses, Effects, updates_in_place
from minbuild.passes.analysis.instruction_selection import context_of
from minbuild.passes.rewrite.copy_elision import ASSIGN

NEAR = 2  # late calls within which a second copy that is made for every reader serves the next one


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Repeatable calls: those that are `kept` do not run twice. Others run twice at most once, except `volatile` ones,
    whose second result is given up soon after it was read, and which run again for the next reader far from it; that
    of `brief` ones, which are volatile too, is given up at once, even where the next call reads it."""

    kept: frozenset[int]
    volatile: frozenset[int] = frozenset()
    brief: frozenset[int] = frozenset()

    def with_kept(self, index: int) -> Checkpoints:
        """The same with the results of call `index` kept."""
        one = {index}
        return Checkpoints(self.kept | one, self.volatile - one, self.brief - one)

    def with_repeated(self, index: int, *, volatile: bool = False, brief: bool = False) -> Checkpoints:
        """The same with call `index` repeated in this way."""
        one = {index}
        return Checkpoints(
            self.kept - one,
            self.volatile | one if volatile or brief else self.volatile - one,
            self.brief | one if brief else self.brief - one,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A simulated step: the bytes that are live at every position, what storage that is at the first peak, as (number,
    copy), and the seconds of the calls that run again."""

    live: tuple[int, ...]
    at_peak: tuple[tuple[int, int], ...]
    seconds: float

    @property
    def peak(self) -> int:
        """The most live bytes."""
        return max(self.live, default=0)

    def excess(self, limit: int) -> int:
        """Bytes over `limit`, summed over all positions: 0 where the step fits."""
        return sum(each - limit for each in self.live if each > limit)


@dataclass(frozen=True, slots=True)
class Step:
    """A call of the new order: its index in the procedure, True where it runs again, and which copy of every storage
    it reads and makes, 0 being the first."""

    index: int
    again: bool
    reads: Mapping[int, int]
    makes: Mapping[int, int]


class _Order:
    """The order of calls under one choice, as it grows."""

    def __init__(self, work: Recomputation, choice: Checkpoints) -> None:
        self.work, self.choice = work, choice
        self.steps: list[Step] = []
        self.copy: dict[int, int] = {}  # storage -> the copy that late calls read
        self.made_for: dict[int, int] = {}  # repeatable call -> the late call it ran for

    def early(self, index: int) -> None:
        """Appends a call of the forward pass."""
        reads, makes = dict.fromkeys(self.work.reads[index], 0), dict.fromkeys(self.work.writes[index], 0)
        self.steps.append(Step(index, False, reads, makes))

    def late(self, index: int) -> None:
        """Appends a call behind the forward pass, and before it those that run again for it; before the first one of a
        tile those for all of it."""
        tile = self.work.tile_at.get(index, range(index, index + 1))
        if index == tile.start:
            for number in dict.fromkeys(n for i in tile for n in self.work.reads[i]):
                self.remake(number, index)
        self.steps.append(
            Step(index, False, self.current(self.work.reads[index]), self.current(self.work.writes[index]))
        )

    def current(self, numbers: Sequence[int]) -> dict[int, int]:
        return {number: self.copy.get(number, 0) for number in numbers}

    def is_there(self, maker: int, index: int) -> bool:
        """True if late call `index` finds what `maker` makes."""
        if maker < 0 or maker in self.choice.kept:
            return True
        made = self.made_for.get(maker)
        if made is None or maker in self.choice.brief:
            return made == index
        return maker not in self.choice.volatile or index - made <= NEAR

    def remake(self, number: int, index: int) -> None:
        """Has storage `number` made again for late call `index`, sources first."""
        work = self.work
        waiting = [(work.maker.get(number, -1), False)]
        while waiting:
            maker, ready = waiting.pop()
            if self.is_there(maker, index):
                continue
            if not ready:
                waiting.append((maker, True))
                waiting += [(work.maker.get(each, -1), False) for each in reversed(work.repeat_reads[maker])]
                continue
            reads = self.current(work.repeat_reads[maker])
            for made in work.remade[maker]:
                self.copy[made] = self.copy.get(made, 0) + 1
            self.made_for[maker] = index
            self.steps.append(Step(maker, True, reads, self.current(work.remade[maker])))


class Recomputation:
    """The calls of one `procedure`, at one assignment of `sizes`, that may run twice; `registry` has their operators.
    Storage of temporaries has numbers."""

    def __init__(self, procedure: Procedure, registry: Registry, sizes: Mapping[str, int]) -> None:
        self.procedure, self.registry, self.sizes = procedure, registry, sizes
        self.effects = effects = Effects(procedure, registry)
        owners = {o for call in procedure.calls for o in effects.touches(call)}
        self.storage = sorted(o for o in owners if effects.role(o) is Role.TEMPORARY)
        self.number = {owner: i for i, owner in enumerate(self.storage)}
        sliced = loop_over_slices(procedure, registry)
        self.bytes = [aligned_bytes(sliced.values[o].type, sizes) for o in self.storage]
        self.reads = [self._numbers(call.inputs) for call in procedure.calls]
        self.writes = [self._numbers(call.outputs) for call in procedure.calls]
        self.returned = {self.number[o] for o in effects.owners(procedure.outputs) if o in self.number}
        self.loss = self._loss()
        costs = costs_of(sliced, registry, sizes)
        self.heavy = {i for i, cost in enumerate(costs) if cost.multiplies}
        self.seconds, self.scratch = [cost.seconds for cost in costs], [cost.scratch for cost in costs]
        self.tile_at = {index: tile for tile in tiles_of(procedure).values() for index in tile}
        self.inner = {self.number[o] for o in inner_values(procedure, effects)}
        self.in_place = [self._in_place(call) for call in procedure.calls]
        self.repeats = self._repeats()
        self.repeat_reads = {i: self._numbers(call.inputs) for i, call in self.repeats.items()}
        self.remade = {i: self._numbers(call.outputs) for i, call in self.repeats.items()}
        self.maker = {number: i for i, numbers in self.remade.items() for number in numbers}

    # ------------------------------------------------------------------------------------------------- simulation

    def order(self, choice: Checkpoints) -> list[Step]:
        """The calls in order, those that run again among them."""
        order = _Order(self, choice)
        for index in range(len(self.procedure.calls)):
            if index <= self.loss:
                order.early(index)
            else:
                order.late(index)
        return order.steps

    def outcome(self, choice: Checkpoints) -> Outcome:
        """Memory and time of the step under `choice`."""
        steps = self.order(choice)
        spans: dict[tuple[int, int], list[int]] = {}
        for position, step in enumerate(steps):
            first = last = position
            tile = None if step.again else self.tile_at.get(step.index)
            if tile:  # what outlives a round is there in all of them
                first = position - (step.index - tile.start)
                last = first + len(tile) - 1
            for each in (*step.reads.items(), *step.makes.items()):
                start, end = (position, position) if each[0] in self.inner else (first, last)
                spans.setdefault(each, [start, end])[1] = end
        for number in self.returned:
            spans[number, 0][1] = len(steps) - 1
        change = [0] * (len(steps) + 1)
        for (number, _), (start, end) in spans.items():
            change[start] += self.bytes[number]
            change[end + 1] -= self.bytes[number]
        live = list(accumulate(change[:-1]))
        seconds = 0.0
        for position, step in enumerate(steps):
            live[position] += self.scratch[step.index]
            if step.again:
                seconds += self.seconds[step.index]
            for output, source in self.in_place[step.index]:
                made, used = (output, step.makes.get(output, -1)), (source, step.reads.get(source, -1))
                if made in spans and used in spans and spans[made][0] == position == spans[used][1]:
                    live[position] -= self.bytes[output]
                    break
        peak = live.index(max(live)) if live else 0
        there = [each for each, (start, end) in spans.items() if start <= peak <= end]
        return Outcome(tuple(live), tuple(there), seconds)

    def bytes_of_call(self, index: int) -> int:
        """The bytes that one call has to have at once."""
        touched = sum(self.bytes[n] for n in {*self.reads[index], *self.writes[index]})
        shared = max((self.bytes[output] for output, _ in self.in_place[index]), default=0)
        return touched + self.scratch[index] - shared

    @property
    def largest_call(self) -> int:
        """The most bytes that one call has to have at once: no order of the calls and no repetition needs less."""
        return max(map(self.bytes_of_call, range(len(self.reads))), default=0)

    @property
    def natural(self) -> frozenset[int]:
        """The repeatable calls whose results gradients read: kept, nothing runs twice."""
        found: set[int] = set()
        waiting = [n for i in range(self.loss + 1, len(self.reads)) for n in self.reads[i]]
        found.update(self.maker[n] for n in waiting if n in self.maker)
        return frozenset(found)

    def saved_seconds(self, index: int) -> float:
        """Seconds saved per byte by keeping the results of a call."""
        return self.seconds[index] / max(sum(self.bytes[n] for n in self.remade[index]), 1)

    @property
    def step_seconds(self) -> float:
        """Seconds of the step where nothing runs twice."""
        return sum(self.seconds)

    # ------------------------------------------------------------------------------------------------- set-up

    def _numbers(self, names: Sequence[str]) -> tuple[int, ...]:
        owners = dict.fromkeys(self.effects.owner(name) for name in names if name)
        return tuple(self.number[owner] for owner in owners if owner in self.number)

    def _loss(self) -> int:
        """The last call that writes to the first output, the loss; -1 without one."""
        loss = self.effects.owners(self.procedure.outputs[:1])
        return max(
            (i for i, c in enumerate(self.procedure.calls) if self.effects.produces(c) & loss), default=-1
        )

    def _in_place(self, call: Call) -> tuple[tuple[int, int], ...]:
        """Outputs that may take the bytes of an input, as (output, input)."""
        pairs = []
        for output, source in self.registry.ops[call.op].in_place:
            if output < len(call.outputs) and call.outputs[output] and source < len(call.inputs):
                made, used = self._numbers((call.outputs[output],)), self._numbers((call.inputs[source],))
                if made and used and self.bytes[made[0]] == self.bytes[used[0]]:
                    pairs.append((made[0], used[0]))
        return tuple(pairs)

    def _repeats(self) -> dict[int, Call]:
        """For every forward call that can run twice the call that does so: it changes nothing that persists, draws no
        random numbers, and reads nothing that changes in between. Its results are owners of their storage that no
        other call writes to."""
        procedure, effects = self.procedure, self.effects
        accesses = Accesses(procedure, effects)
        assigned = [call.inputs[1] for call in procedure.calls if call.op == ASSIGN]
        fixed = effects.owners((*procedure.outputs, *assigned))
        found = {}
        for index, call in enumerate(procedure.calls[: self.loss + 1]):
            again = self._again(call)
            if again is None:
                continue
            made = [name for name in again.outputs if name]
            alone = all(
                effects.owner(n) == n
                and n not in fixed
                and effects.role(n) is Role.TEMPORARY
                and accesses.written.get(n) == [index]
                for n in made
            )
            after = range(index + 1, len(procedure.calls))
            changed = any(accesses.written_in(owner, after) for owner in effects.reads(again))
            if made and alone and not changed:
                found[index] = again
        return found

    def _again(self, call: Call) -> Call | None:
        op = self.registry.ops[call.op]
        changes = call.accumulate or updates_in_place(call, self.registry)
        if not changes and op.generator is None and op.lower is not None:
            return call
        repeat = op.rematerialize
        return repeat(call, context_of(call, self.procedure.values)) if repeat else None
