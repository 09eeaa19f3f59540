"""Simulation of a training step that repeats calls: its order for a choice of checkpoints, its live bytes and its time.

Thousands of choices are simulated to find one. What is the same for all of them, the forward pass, is prepared once,
and storage is counted by numbers in lists.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

NEAR = 2  # late calls within which a second copy that is made for every reader serves the next one
_NEVER = -1 - NEAR  # the late call that a result was made for which is not there
_KEPT, _ONCE, _VOLATILE, _BRIEF = range(4)


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

    live: Sequence[int]
    peak: int
    at_peak: tuple[int, ...]
    seconds: float

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


@dataclass(frozen=True, slots=True)
class Access:
    """The storage that a call reads and writes, by number, and where an output may take the bytes of an input, as
    (output, input)."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: tuple[tuple[int, int], ...] = ()

    @property
    def touched(self) -> tuple[int, ...]:
        """Each number once."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes of storage, by number, and scratch memory and seconds of every call."""

    bytes: Sequence[int]
    scratch: Sequence[int]
    seconds: Sequence[float]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Loops over slices of channels: the range of calls that each call of one is in, and the numbers of the storage
    that has room for one slice."""

    at: Mapping[int, range]
    inner: frozenset[int]


@dataclass
class Simulation:
    """The step of `calls` up to and behind the `loss`. `repeats` are the calls that can run twice, by index, as they do
    the second time; `returned` is the storage of outputs."""

    calls: Sequence[Access]
    loss: int
    repeats: Mapping[int, Access]
    returned: frozenset[int]
    costs: Costs
    tiles: Tiles
    _found: dict[Checkpoints, Outcome] = field(init=False, default_factory=dict)
    maker: dict[int, int] = field(init=False)  # storage -> the repeatable call that makes it
    _needed: list[tuple[int, ...]] = field(
        init=False
    )  # call -> makers of what it or its tile reads, last first
    _sources: dict[int, tuple[int, ...]] = field(init=False)  # repeatable call -> makers, the last first
    _touched: list[tuple[int, ...]] = field(init=False)
    _forward: tuple[list[int], list[int]] = field(init=False)  # first and last position of all storage

    def __post_init__(self) -> None:
        maker = {number: i for i, access in self.repeats.items() for number in access.writes}

        def makers(numbers: Sequence[int]) -> tuple[int, ...]:
            return tuple(dict.fromkeys(maker[n] for n in numbers if n in maker))

        def needed(index: int) -> tuple[int, ...]:
            tile = self.tiles.at.get(index, range(index, index + 1))
            return makers([n for i in tile for n in self.calls[i].reads])[::-1] if index == tile.start else ()

        touched = [call.touched for call in self.calls]
        first, last = [-1] * len(self.costs.bytes), [-1] * len(self.costs.bytes)
        for position, numbers in enumerate(touched[: self.loss + 1]):
            for number in numbers:
                first[number] = position if first[number] < 0 else first[number]
                last[number] = position
        late = range(self.loss + 1, len(self.calls))
        self.maker = maker
        self._needed = [needed(i) if i in late else () for i in range(len(self.calls))]
        self._sources = {i: makers(access.reads)[::-1] for i, access in self.repeats.items()}
        self._touched = touched
        self._forward = (first, last)

    def sequence(self, choice: Checkpoints) -> list[tuple[int, bool]]:
        """The calls behind the loss, and True for those that run again right before the first one that needs them, or
        before the tile that it is in."""
        ways = dict.fromkeys(self.repeats, _ONCE)
        ways.update(dict.fromkeys(choice.volatile, _VOLATILE))
        ways.update(dict.fromkeys(choice.brief, _BRIEF))
        ways.update(dict.fromkeys(choice.kept, _KEPT))
        made_for = dict.fromkeys(ways, _NEVER)
        found = []
        for index in range(self.loss + 1, len(self.calls)):
            waiting = [maker for maker in self._needed[index] if ways[maker]]
            while waiting:
                maker = waiting.pop()
                done = maker < 0  # its sources are
                maker = ~maker if done else maker
                way, made = ways[maker], made_for[maker]
                if (
                    (way == _ONCE and made >= 0)
                    or made == index
                    or (way == _VOLATILE and index - made <= NEAR)
                ):
                    continue
                if done:
                    made_for[maker] = index
                    found.append((maker, True))
                else:
                    waiting.append(~maker)
                    waiting += [each for each in self._sources[maker] if ways[each]]
            found.append((index, False))
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

        for index, again in self.sequence(choice):
            access = self.repeats[index] if again else self.calls[index]
            reads = current(access.reads)
            for number in access.writes if again else ():
                copy[number] = copy.get(number, 0) + 1
            steps.append(Step(index, again, reads, current(access.writes)))
        return steps

    def outcome(self, choice: Checkpoints) -> Outcome:
        """Memory and time of the step under `choice`; a choice is often asked for twice."""
        if choice not in self._found:
            self._found[choice] = self._outcome(choice)
        return self._found[choice]

    def _outcome(self, choice: Checkpoints) -> Outcome:
        sequence, start = self.sequence(choice), self.loss + 1
        spans = _Spans(*(each[:] for each in self._forward))
        shared = [(i, call.in_place) for i, call in enumerate(self.calls[:start]) if call.in_place]
        copy = list(range(len(spans.first)))
        tiles, inner = self.tiles.at, self.tiles.inner
        first, last = spans.first, spans.last
        seconds = 0.0
        for position, (index, again) in enumerate(sequence, start):
            access = self.repeats[index] if again else self.calls[index]
            used = [copy[source] for _, source in access.in_place] if access.in_place else ()
            if again:
                seconds += self.costs.seconds[index]
                for number in access.reads:
                    last[copy[number]] = position
                for number in access.writes:
                    copy[number] = len(first)
                    first.append(position)
                    last.append(position)
                    spans.number.append(number)
            elif index in tiles:  # what outlives a round is there in all of them
                begin = position - (index - tiles[index].start)
                end = begin + len(tiles[index]) - 1
                for number in self._touched[index]:
                    span = (position, position) if number in inner else (begin, end)
                    spans.touch(copy[number], *span)
            else:
                for number in self._touched[index]:
                    at = copy[number]
                    last[at] = position
                    if first[at] < 0:
                        first[at] = position
            if access.in_place:
                made = (copy[output] for output, _ in access.in_place)
                shared.append((position, tuple(zip(made, used, strict=True))))
        for number in self.returned:
            last[number] = start + len(sequence) - 1
        live = spans.live(self.costs.bytes, start + len(sequence))
        for position, scratch in enumerate(self.costs.scratch[:start]):
            live[position] += scratch
        for position, (index, _) in enumerate(sequence, start):
            live[position] += self.costs.scratch[index]
        for position, pairs in shared:
            for made_at, used_at in pairs:
                if first[made_at] == position == last[used_at]:
                    live[position] -= self.costs.bytes[spans.number[made_at]]
                    break
        peak = max(live, default=0)
        return Outcome(array("q", live), peak, spans.at(live.index(peak)) if live else (), seconds)


class _Spans:
    """The `first` and the `last` position of copies of storage; the first copy of each has its number."""

    def __init__(self, first: list[int], last: list[int]) -> None:
        self.first, self.last = first, last
        self.number = list(range(len(first)))

    def touch(self, copy: int, begin: int, end: int) -> None:
        """Has `copy` live to `end`, and from `begin` on if this is its first use."""
        if self.first[copy] < 0:
            self.first[copy] = begin
        self.last[copy] = end

    def live(self, sizes: Sequence[int], count: int) -> list[int]:
        """Live bytes at each of `count` positions, of storage of these `sizes`."""
        change = [0] * (count + 1)
        for number, first, last in zip(self.number, self.first, self.last, strict=True):
            if first >= 0:
                change[first] += sizes[number]
                change[last + 1] -= sizes[number]
        return list(accumulate(change[:-1]))

    def at(self, position: int) -> tuple[int, ...]:
        """The numbers of the storage that is live at a position."""
        return tuple(
            number
            for number, first, last in zip(self.number, self.first, self.last, strict=True)
            if 0 <= first <= position <= last
        )
