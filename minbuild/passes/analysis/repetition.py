"""Simulation of a training step that repeats calls: its order for a choice of checkpoints, its live bytes and its time.

Thousands of choices are simulated to find one: their memory is that of `repetition_memory`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from minbuild.passes.analysis.repetition_memory import Access, Costs, StepMemory, Tiles

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
    """A simulated step: the bytes that are `live` at every position, the most of them, the numbers of the storage that
    is at the first peak, and the seconds of the calls that run again."""

    live: array[int]
    peak: int
    at_peak: tuple[int, ...]
    seconds: float

    def excess(self, limit: int) -> int:
        """Bytes over `limit`, summed over all positions: 0 where the step fits."""
        return int(np.maximum(np.asarray(self.live) - limit, 0).sum())


# The outcomes of choices for one step, by all that the step is.
Outcomes = dict[tuple[object, ...], dict[Checkpoints, Outcome]]


@dataclass(frozen=True, slots=True)
class Step:
    """A call of the new order: its index in the procedure, True where it runs again, and which copy of every storage
    it reads and makes, 0 being the first."""

    index: int
    again: bool
    reads: Mapping[int, int]
    makes: Mapping[int, int]


@dataclass
class Simulation:
    """The step of `calls` up to and behind the `loss`. `repeats` are the calls that can run twice, by index, as they do
    the second time; `returned` is the storage of outputs, `outcomes` are those of choices that are known."""

    calls: Sequence[Access]
    loss: int
    repeats: Mapping[int, Access]
    returned: frozenset[int]
    costs: Costs
    tiles: Tiles
    outcomes: Outcomes = field(default_factory=dict)  # of the last step, which an equal one shares
    _found: dict[Checkpoints, Outcome] = field(init=False)
    maker: dict[int, int] = field(init=False)  # storage -> the repeatable call that makes it
    _needed: list[tuple[int, ...]] = field(
        init=False
    )  # call -> makers of what it or its tile reads, last first
    _sources: dict[int, tuple[int, ...]] = field(init=False)  # repeatable call -> makers, the last first
    _memory: StepMemory = field(init=False)

    def __post_init__(self) -> None:
        maker = {number: i for i, access in self.repeats.items() for number in access.writes}

        def makers(numbers: Sequence[int]) -> tuple[int, ...]:
            return tuple(dict.fromkeys(maker[n] for n in numbers if n in maker))

        def needed(index: int) -> tuple[int, ...]:
            tile = self.tiles.at.get(index, range(index, index + 1))
            return makers([n for i in tile for n in self.calls[i].reads])[::-1] if index == tile.start else ()

        late = range(self.loss + 1, len(self.calls))
        self.maker = maker
        costs, tiles = self.costs, self.tiles
        same = (
            *(tuple(self.calls), self.loss, tuple(sorted(self.repeats.items())), self.returned),
            *(tuple(costs.bytes), tuple(costs.scratch), tuple(costs.seconds)),
            *(tuple((i, t.start, t.stop) for i, t in sorted(tiles.at.items())), tiles.inner),
        )
        if same not in self.outcomes:
            self.outcomes.clear()  # thousands of outcomes are many bytes
        self._found = self.outcomes.setdefault(same, {})
        self._needed = [needed(i) if i in late else () for i in range(len(self.calls))]
        self._sources = {i: makers(access.reads)[::-1] for i, access in self.repeats.items()}
        self._memory = StepMemory(
            self.calls,
            loss=self.loss,
            repeats=self.repeats,
            returned=self.returned,
            costs=self.costs,
            tiles=self.tiles,
        )

    def sequence(self, choice: Checkpoints) -> list[int]:
        """The calls behind the loss, and ~index for those that run again right before the first one that needs them,
        or before the tile that it is in."""
        count = len(self.calls)
        reach = [count] * count  # late calls for which the results of a repetition are there
        for index in choice.volatile:
            reach[index] = NEAR
        for index in choice.brief:
            reach[index] = 0
        until = [-1] * count  # the last of these
        for index in choice.kept:
            until[index] = count
        found = []
        for index in range(self.loss + 1, count):
            waiting = [maker for maker in self._needed[index] if until[maker] < index]
            while waiting:
                maker = waiting.pop()
                if maker >= 0:  # its sources first
                    if until[maker] < index:
                        waiting.append(~maker)
                        waiting += [each for each in self._sources[maker] if until[each] < index]
                elif until[~maker] < index:
                    until[~maker] = index + reach[~maker]
                    found.append(maker)
            found.append(index)
        return found

    def repeated_with(self, index: int, kept: Set[int], again: Set[int]) -> set[int]:
        """The calls that run again together with call `index`, itself among them: makers of what it reads that are not
        `kept` and do not run `again` anyway."""
        found, waiting = {index}, [index]
        while waiting:
            for maker in self._sources[waiting.pop()]:
                if maker not in kept and maker not in again and maker not in found:
                    found.add(maker)
                    waiting.append(maker)
        return found

    def order(self, choice: Checkpoints) -> list[Step]:
        """All calls in order, with the copies of storage that they read and make."""
        steps = [
            Step(i, False, dict.fromkeys(call.reads, 0), dict.fromkeys(call.writes, 0))
            for i, call in enumerate(self.calls[: self.loss + 1])
        ]
        copy: dict[int, int] = {}  # storage -> the copy that late calls read

        def current(numbers: Sequence[int]) -> dict[int, int]:
            return {number: copy.get(number, 0) for number in numbers}

        for each in self.sequence(choice):
            again = each < 0
            access = self.repeats[~each] if again else self.calls[each]
            reads = current(access.reads)
            for number in access.writes if again else ():
                copy[number] = copy.get(number, 0) + 1
            steps.append(Step(~each if again else each, again, reads, current(access.writes)))
        return steps

    def outcome(self, choice: Checkpoints) -> Outcome:
        """Memory and time of the step under `choice`; a choice is often asked for twice."""
        if choice not in self._found:
            sequence = self.sequence(choice)
            seconds = 0.0
            for each in sequence:
                if each < 0:
                    seconds += self.costs.seconds[~each]
            self._found[choice] = Outcome(*self._memory.simulate(sequence), seconds)
        return self._found[choice]
