"""Packers: many quick layouts that fill holes, each as an order in which the device stacks the buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from minbuild.planning.arena.placement import (
    Lifespan,
    Load,
    Order,
    Problem,
    Score,
    column_loads,
    load_of,
    most_in_each,
    score_of,
)

_FILL_WORK = 400_000_000  # pairs of buffers compared by all fills together, up to 4 nanoseconds each
_FEW_FILLS = 5  # fewer do not come to the third priority, which reaches the bound of most deep networks
_MANY_BUFFERS = 2_000  # from here on a fill looks for the buffers that a hole can lie between


def ranked_orders(problem: Problem, count: int) -> list[tuple[Score, Order]]:
    """The best `count` packings of different score, best first. Each is made for one load and judged at all of them,
    until it is worse than those at one."""
    found: dict[Score, Order] = {}
    worst = math.inf
    for order in _packings(problem):
        score = score_of(problem, order, worst)
        if score is None:
            continue
        if score[0] <= 1.0:
            return [(score, order)]
        found.setdefault(score, order)
        if len(found) > count:
            del found[max(found)]
        if len(found) == count:
            worst = max(found)[0]
    return sorted(found.items())


def _packings(problem: Problem) -> Iterator[Order]:
    count = len(problem.spans)
    fills = _FILL_WORK // max(1, count * count // 2)
    yield list(range(count))
    promising = 2 if fills < _FEW_FILLS else 0
    for load in (*problem.loads, _blend(problem)):
        for priority in _priorities(problem, load, promising):
            yield priority
            for best_fit in (False, True):
                fills -= 1
                if fills < 0:
                    continue
                offsets = _fill(problem.spans, load.sizes, priority, best_fit)
                yield sorted(priority, key=lambda i: (offsets[i], load.sizes[i]))


def _blend(problem: Problem) -> Load:
    """All loads in one, each weighted to the same bound: a packing for it favours none of them."""
    top = max(load.bound for load in problem.loads)
    sizes = [0] * len(problem.spans)
    for load in problem.loads:
        sizes = [
            total + size * top // max(1, load.bound) for total, size in zip(sizes, load.sizes, strict=True)
        ]
    return load_of(problem.spans, problem.columns, sizes)


def _priorities(problem: Problem, load: Load, promising: int = 0) -> Iterator[Order]:
    """Sequences in which a packer may take the buffers, that of number `promising` first; all ties fall to the caller's
    order."""
    spans, sizes = problem.spans, load.sizes
    live = column_loads(spans, problem.columns, sizes)
    length = [end - begin for begin, end in spans]
    crowd = most_in_each(live, spans)
    keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-sizes[i], -length[i]),
        lambda i: (-crowd[i], -sizes[i]),  # buffers live at the peak come first
        lambda i: (-crowd[i], -length[i]),
        lambda i: (-sizes[i] * length[i], -sizes[i]),
        lambda i: (-length[i], -sizes[i]),  # forward and backward nest: the longest-lived at the bottom
        lambda i: (-spans[i][1], spans[i][0]),
        lambda i: (spans[i][0], -spans[i][1]),
        lambda i: (abs(sum(spans[i]) - problem.columns), -length[i]),  # from the loss outwards
    )
    for key in (keys[promising], *keys[:promising], *keys[promising + 1 :]):
        yield sorted(range(len(spans)), key=key)


def _fill(spans: Sequence[Lifespan], sizes: Sequence[int], priority: Order, best_fit: bool) -> list[int]:
    """Offsets when each buffer takes the lowest hole it fits in, or the tightest, else the top. No hole of many buffers
    reaches below the `floor` of one of its columns, so that most of them are compared with few others."""
    count, largest = len(spans), max(sizes, default=0)
    many = count >= _MANY_BUFFERS
    offsets = [0] * count
    floor = np.zeros(max((end for _, end in spans), default=0), np.int64)  # of columns: all below is taken
    low, high = np.zeros(count, np.int64), np.zeros(count, np.int64)  # offset and end; all by offset
    first, last = np.zeros(count, np.int32), np.zeros(count, np.int32)  # begin column and end column
    for number, i in enumerate(priority):
        begin, end = spans[i]
        bottom = since = 0
        if many:
            bottom = int(floor[begin:end].max())
            since = int(low[:number].searchsorted(bottom - largest, "right"))  # no earlier one ends above it
        met = ((first[since:number] < np.int32(end)) & (last[since:number] > np.int32(begin))).nonzero()[0]
        offset = bottom
        if met.size:
            tops = np.maximum.accumulate(high[since:number][met])
            gaps = low[since:number][met]
            if many:
                np.maximum(tops, bottom, out=tops)
                gaps[0] -= bottom
            gaps[1:] -= tops[:-1]
            fits = (gaps >= max(sizes[i], 1)).nonzero()[0]
            if not fits.size:
                offset = int(tops[-1])
            else:
                chosen = int(fits[gaps[fits].argmin()]) if best_fit else int(fits[0])
                offset = int(tops[chosen - 1]) if chosen else bottom
        offsets[i] = offset
        if many:
            own = floor[begin:end]
            own[own == offset] = offset + sizes[i]
        at = int(low[:number].searchsorted(offset))
        for row, value in ((low, offset), (high, offset + sizes[i]), (first, begin), (last, end)):
            row[at + 1 : number + 1] = row[at:number]  # of one dimension, so that nothing is copied twice
            row[at] = value
    return offsets
