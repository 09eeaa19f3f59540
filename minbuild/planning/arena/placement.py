"""Buffers over columns of time: how the device stacks them, and how high they come.

The device gives buffer i the offset `max(offset[j] + size[j])` over all earlier buffers j alive at the same time (0
without any).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from minbuild.ir import Buffer

Order = list[int]  # positions in the caller's sequence of buffers, as the device puts them down
Score = tuple[float, float]  # worst peak / bound of the assignments, and their sum
Lifespan = tuple[int, int]  # columns [begin, end) a buffer stands on


@dataclass(frozen=True, slots=True)
class Load:
    """Sizes at one assignment and their lower bound, both in units of the sizes' greatest common divisor."""

    sizes: tuple[int, ...]
    bound: int

    def ratio(self, peak: int) -> float:
        return peak / self.bound if self.bound else 1.0


@dataclass(frozen=True, slots=True)
class Solution:
    """A layout: the offset of every buffer in the order given, and the height of the arena, both in bytes."""

    offsets: tuple[int, ...]
    height: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A packing problem. Assignments that only scale all sizes are one load."""

    spans: tuple[Lifespan, ...]
    columns: int
    loads: tuple[Load, ...]


def load_of(spans: Sequence[Lifespan], columns: int, sizes: Sequence[int]) -> Load:
    """The sizes of buffers in units of their greatest common divisor, and their lower bound. `spans` are lifespans
    over so few `columns`, `sizes` bytes."""
    unit = math.gcd(*sizes) or 1
    units = tuple(size // unit for size in sizes)
    return Load(units, bound_of(spans, columns, units))


def lifespans_of(buffers: Sequence[Buffer]) -> tuple[list[Lifespan], int]:
    """Lifespans over as few columns as show which buffers overlap in time, and the number of columns.

    Two overlapping lifespans share the later of their first steps, so steps at which no buffer starts add no
    information; and of starts without an end between them the last one overlaps everything that the others do.
    """
    for buffer in buffers:
        if buffer.last < buffer.first:
            raise ValueError(
                f"buffer '{buffer.name}' ends at step {buffer.last}, before its start {buffer.first}"
            )
    if not buffers:
        return [], 0
    starts = sorted({buffer.first for buffer in buffers})
    ends = sorted({buffer.last for buffer in buffers})
    kept = [
        here
        for here, following in zip(starts, [*starts[1:], math.inf], strict=True)
        if ends[bisect_left(ends, here)] < following
    ]
    return [(bisect_left(kept, b.first), bisect_right(kept, b.last)) for b in buffers], len(kept)


def stack(spans: Sequence[Lifespan], columns: int, sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Offsets by the device's rule. `spans` are lifespans over `columns`, `sizes` bytes, `order` the indices of buffers
    in the order of placing."""
    offsets = [0] * len(spans)
    for i, base in _stacked(spans, columns, sizes, order):
        offsets[i] = base
    return offsets


def _stacked(
    spans: Sequence[Lifespan], columns: int, sizes: Sequence[int], order: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Buffers and their offsets, one by one, as `stack` gives them. The skyline is a list of segments, each beginning
    at a column and as high as the end of the last buffer put on it; a buffer replaces those it covers, so that all
    together cost n log n."""
    starts, heights = [0], [0]
    for i in order:
        begin, end = spans[i]
        low, high = bisect_right(starts, begin) - 1, bisect_left(starts, end)
        covered = heights[low:high]
        base = max(covered)
        yield i, base
        new_starts, new_heights = [begin], [base + sizes[i]]
        if starts[low] < begin:
            new_starts.insert(0, starts[low])
            new_heights.insert(0, covered[0])
        if end < (starts[high] if high < len(starts) else columns):
            new_starts.append(end)
            new_heights.append(covered[-1])
        starts[low:high], heights[low:high] = new_starts, new_heights


def column_loads(spans: Sequence[Lifespan], columns: int, sizes: Sequence[int]) -> list[int]:
    """Bytes alive in each column. `spans` are lifespans over `columns`, `sizes` bytes."""
    change = [0] * (columns + 1)
    for (begin, end), size in zip(spans, sizes, strict=True):
        change[begin] += size
        change[end] -= size
    return list(accumulate(change[:columns]))


def bound_of(spans: Sequence[Lifespan], columns: int, sizes: Sequence[int]) -> int:
    """The largest sum of sizes that are alive in one column: no layout is lower. `spans` are lifespans over
    `columns`, `sizes` bytes."""
    return max(column_loads(spans, columns, sizes), default=0)


def score_of(problem: Problem, order: Order, worst: float = math.inf) -> Score | None:
    """The score of `problem` packed in `order`; None as soon as a ratio turns out to be above `worst`."""
    ratios = []
    for load in problem.loads:
        height, limit = 0, worst * load.bound + 1  # rounded, so that what is as good as the worst stays below
        for i, base in _stacked(problem.spans, problem.columns, load.sizes, order):
            height = max(height, base + load.sizes[i])
            if height > limit:
                break
        if load.ratio(height) > worst:
            return None
        ratios.append(load.ratio(height))
    return max(ratios), sum(ratios)


def most_in_each(loads: Sequence[int], spans: Sequence[Lifespan]) -> list[int]:
    """The largest of the `loads` in the columns of each of the `spans`, which are not empty. Every span is covered by
    two ranges of as many columns as a power of two has, whose largest loads are looked up."""
    levels, width = [list(loads)], 1
    while 2 * width <= len(loads):
        levels.append(list(map(max, levels[-1], levels[-1][width:])))
        width *= 2
    largest = []
    for begin, end in spans:
        power = (end - begin).bit_length() - 1
        largest.append(max(levels[power][begin], levels[power][end - (1 << power)]))
    return largest
