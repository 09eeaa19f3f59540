"""Live bytes of a training step that repeats calls.

Each storage is there in copies: the first one, and one more for each repetition of the call that makes it. All uses of
storage in the calls behind the loss are sorted by storage, where the uses of one copy stand together: their first and
their last position are its life. Thousands of orders are simulated, so the uses of every call are prepared as arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

_NEVER = np.iinfo(np.int64).max  # the first use of what is not there
_Ints = np.ndarray[Any, np.dtype[np.int64]]


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


class _Use(NamedTuple):
    """One use of storage `number` by a call: the positions between which it is live for it, from the call's own, and
    True where it is the first of a new copy. Reading for a repetition is never the first use of a copy (`begins`)."""

    number: int
    begin: int = 0
    end: int = 0
    new: bool = False
    begins: bool = True


class _Copies(NamedTuple):
    """The number of the storage of every copy, and its first and last position."""

    number: _Ints
    first: _Ints
    last: _Ints


class StepMemory:
    """The memory of a step of `calls` whose order is free behind the `loss`. `repeats` are the calls that can run
    twice, by index, as they do the second time; `returned` is the storage of outputs, `costs` and `tiles` are those of
    the calls."""

    def __init__(
        self,
        calls: Sequence[Access],
        loss: int,
        repeats: Mapping[int, Access],
        returned: frozenset[int],
        costs: Costs,
        tiles: Tiles,
    ) -> None:
        self._start, self._calls, count = loss + 1, len(calls), len(costs.bytes)
        self._bytes = np.array(costs.bytes, np.int64)
        self._scratch = np.array(costs.scratch, np.int64)
        self._returned = np.array(sorted(returned), np.int64)
        self._first = np.full(count, _NEVER)
        self._last = np.full(count, -1)
        for position, call in enumerate(calls[: self._start]):
            touched = list(call.touched)
            self._first[touched] = np.minimum(self._first[touched], position)
            self._last[touched] = position
        uses = [_first_uses(i, call, tiles) for i, call in enumerate(calls)]
        uses += [_repeated_uses(repeats[i]) if i in repeats else [] for i in range(len(calls))]
        flat = [use for each in uses for use in each]
        self._count = np.array([len(each) for each in uses], np.int64)
        self._at = np.cumsum(self._count) - self._count
        self._number = np.array([use.number for use in flat], np.int16 if count < 1 << 15 else np.int64)
        self._begin = np.array([use.begin if use.begins else _NEVER for use in flat], np.int64)
        self._end = np.array([use.end for use in flat], np.int64)
        self._new = np.array([use.new for use in flat], bool)
        forward = [(i, *pair) for i, call in enumerate(calls[: self._start]) for pair in call.in_place]
        self._forward_shares = np.array(forward, np.int64).reshape(-1, 3)
        shares = [call.in_place for call in calls]
        shares += [repeats[i].in_place if i in repeats else () for i in range(len(calls))]
        slots = [
            [(_place(each, made), _place(each, used)) for made, used in pairs]
            for each, pairs in zip(uses, shares, strict=True)
        ]
        self._share_count = np.array([len(each) for each in slots], np.int64)
        self._share_at = np.cumsum(self._share_count) - self._share_count
        self._shares = np.array([pair for each in slots for pair in each], np.int64).reshape(-1, 2)

    def simulate(self, sequence: Sequence[int]) -> tuple[array[int], int, tuple[int, ...]]:
        """The live bytes at every position of a step with the calls `sequence` behind the loss, ~index for those that
        run again, the most of them, and the numbers of the storage that is live at the first peak."""
        order = np.array(sequence, np.int64)
        again = order < 0
        index = np.where(again, ~order, order)
        kind = np.where(again, index + self._calls, index)
        position = np.arange(self._start, self._start + len(order))
        copies, made = self._copies(kind, position)
        total = self._start + len(order)
        if not total:
            return array("q"), 0, ()
        live = self._live(copies, total)
        live[: self._start] += self._scratch[: self._start]
        live[self._start :] += self._scratch[index]
        self._share(live, copies, made, kind, position)
        at = int(live.argmax())
        there = np.flatnonzero((copies.first <= at) & (copies.last >= at))
        return array("q", live.tobytes()), int(live[at]), tuple(copies.number[there].tolist())

    def _copies(self, kind: _Ints, position: _Ints) -> tuple[_Copies, _Ints]:
        """All copies of storage, the first ones by their numbers, and the copy that every use is of. `kind` are the
        late calls, repetitions behind all others, at these positions."""
        use, count = _ranges(self._at[kind], self._count[kind]), self._count[kind]
        at = np.repeat(position, count)
        number, new = self._number[use], self._new[use]
        begin, end = self._begin[use], self._end[use] + at
        begin = np.where(begin == _NEVER, _NEVER, begin + at)
        order = np.argsort(number, kind="stable")
        number, new = number[order].astype(np.int64), new[order]
        starts = new.copy()
        starts[:1] = True
        starts[1:] |= number[1:] != number[:-1]
        places = np.flatnonzero(starts)
        ends = np.append(places[1:], len(number))[: len(places)] - 1
        first, last = self._first.copy(), self._last.copy()
        if not len(places):
            last[self._returned] = self._start + len(kind) - 1
            return _Copies(np.arange(len(first)), first, last), order
        firsts, lasts = np.minimum.reduceat(begin[order], places), end[order][ends]
        old = ~new[places]
        numbers = number[places]
        first[numbers[old]] = np.minimum(first[numbers[old]], firsts[old])
        last[numbers[old]] = lasts[old]
        last[self._returned] = self._start + len(kind) - 1
        copy = np.where(old, numbers, len(first) + np.cumsum(~old) - 1)
        made = np.empty_like(order)
        made[order] = copy[np.cumsum(starts) - 1]
        copies = _Copies(
            np.concatenate((np.arange(len(first)), numbers[~old])),
            np.concatenate((first, firsts[~old])),
            np.concatenate((last, lasts[~old])),
        )
        return copies, made

    def _live(self, copies: _Copies, total: int) -> _Ints:
        there = copies.first != _NEVER
        sizes = self._bytes[copies.number[there]]
        change = np.zeros(total + 1, np.int64)
        np.add.at(change, copies.first[there], sizes)
        np.subtract.at(change, copies.last[there] + 1, sizes)
        return np.cumsum(change[:-1])

    def _share(self, live: _Ints, copies: _Copies, made: _Ints, kind: _Ints, position: _Ints) -> None:
        """Subtracts from `live` the bytes of outputs that take those of an input: one of each call, the first that may.
        `made` is the copy that each use is of."""
        count = self._share_count[kind]
        pairs = self._shares[_ranges(self._share_at[kind], count)]
        uses = np.repeat(np.cumsum(self._count[kind]) - self._count[kind], count)
        late = made[uses[:, None] + pairs]
        at = np.concatenate((self._forward_shares[:, 0], np.repeat(position, count)))
        outputs = np.concatenate((self._forward_shares[:, 1], late[:, 0]))
        inputs = np.concatenate((self._forward_shares[:, 2], late[:, 1]))
        shares = (copies.first[outputs] == at) & (copies.last[inputs] == at)
        at, outputs = at[shares], outputs[shares]
        alone = np.ones(len(at), bool)
        alone[1:] = at[1:] != at[:-1]
        live[at[alone]] -= self._bytes[copies.number[outputs[alone]]]


def _first_uses(index: int, call: Access, tiles: Tiles) -> list[_Use]:
    """The uses of a call that runs once. What outlives a round of a loop is there in all of them."""
    if index not in tiles.at:
        return [_Use(number) for number in call.touched]
    begin = tiles.at[index].start - index
    end = begin + len(tiles.at[index]) - 1
    return [_Use(n) if n in tiles.inner else _Use(n, begin, end) for n in call.touched]


def _repeated_uses(call: Access) -> list[_Use]:
    """The uses of a repetition."""
    reads = [_Use(number, begins=False) for number in call.reads]
    return reads + [_Use(number, new=True) for number in call.writes]


def _place(uses: Sequence[_Use], number: int) -> int:
    return next(i for i, use in enumerate(uses) if use.number == number)


def _ranges(starts: _Ints, counts: _Ints) -> _Ints:
    """The numbers `start`, `start` + 1, ... of ranges of these lengths, one behind the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - ends + counts, counts)
