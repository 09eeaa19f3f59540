"""Arena layout: the order in which the device stacks the buffers of one procedure.

The device gives buffer i the offset `max(offset[j] + size[j])` over all earlier buffers j alive at the same
time (0 without any), sizes rounded up to `ALIGNMENT`. That is valid for every value of the symbols, and any
packing, sorted by offset, comes out of it no higher than it was; so only the order is left to choose. It is
chosen for the smallest peak at a few representative symbol values: packers that fill holes, their layouts
sorted by offset, then a seeded search that moves the buffers holding up the peak. All budgets are counts, so
the same input gives the same order on any machine.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add

from minbuild.dims import evaluate
from minbuild.model import Buffer

ALIGNMENT = 16  # bytes; the device rounds every size up to it

_SEED = 20240719
_SEARCH_WORK = 480_000  # buffers put down by all searches together, about a microsecond each
_SEARCHES = 3  # packings the search starts from; more starts leave each too little work
_PATIENCE = 3_000  # moves without a better peak before a search gives up

Order = list[int]  # positions in the caller's sequence of buffers, as the device puts them down
Score = tuple[float, float]  # worst peak / bound of the assignments, and their sum
Span = tuple[int, int]  # columns [begin, end) a buffer stands on


def aligned(size: int) -> int:
    """`size` rounded up to the arena's alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def buffer_sizes(buffers: Sequence[Buffer], assignment: Mapping[str, int]) -> tuple[int, ...]:
    """Bytes of each buffer at the given symbol values, not yet aligned."""
    return tuple(evaluate(buffer.bytes, assignment) for buffer in buffers)


def skyline(buffers: Sequence[Buffer], sizes: Sequence[int]) -> tuple[list[int], int]:
    """Offsets and peak in bytes of `buffers` put down in the order given, exactly as the device does it."""
    spans, columns = _spans(buffers)
    rounded = _aligned(buffers, sizes)
    offsets = _stack(spans, columns, rounded, range(len(spans)))
    return offsets, max(map(add, offsets, rounded), default=0)


def lower_bound(buffers: Sequence[Buffer], sizes: Sequence[int]) -> int:
    """The most bytes alive at any one step, aligned: no layout of these lifetimes is smaller."""
    spans, columns = _spans(buffers)
    return _bound(spans, columns, _aligned(buffers, sizes))


def order_buffers(buffers: Sequence[Buffer], assignments: Sequence[Mapping[str, int]]) -> tuple[Buffer, ...]:
    """The placement order with the smallest worst ratio of peak to lower bound over `assignments`.

    Ties fall to the sum of the ratios. Raises ValueError without assignments, for a lifetime that ends before
    it starts, and for a negative size.
    """
    if not assignments:
        raise ValueError("order_buffers needs the symbol values to plan for; give one assignment or more")
    if not buffers:
        return ()
    spans, columns = _spans(buffers)
    loads = [_load(spans, columns, _aligned(buffers, buffer_sizes(buffers, a))) for a in assignments]
    problem = _Problem(tuple(spans), columns, tuple(dict.fromkeys(loads)))
    return tuple(buffers[i] for i in _best_order(problem))


# ------------------------------------------------------------------------------------------------- geometry


@dataclass(frozen=True, slots=True)
class _Load:
    """Sizes at one assignment and their lower bound, both in units of the sizes' greatest common divisor."""

    sizes: tuple[int, ...]
    bound: int

    def ratio(self, peak: int) -> float:
        return peak / self.bound if self.bound else 1.0


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is packed. Assignments that only scale all sizes are one load."""

    spans: tuple[Span, ...]
    columns: int
    loads: tuple[_Load, ...]


def _load(spans: Sequence[Span], columns: int, sizes: Sequence[int]) -> _Load:
    unit = math.gcd(*sizes) or 1
    units = tuple(size // unit for size in sizes)
    return _Load(units, _bound(spans, columns, units))


def _aligned(buffers: Sequence[Buffer], sizes: Sequence[int]) -> list[int]:
    for buffer, size in zip(buffers, sizes, strict=True):
        if size < 0:
            raise ValueError(f"buffer '{buffer.name}' has {size} bytes; sizes start at 0")
    return [aligned(size) for size in sizes]


def _spans(buffers: Sequence[Buffer]) -> tuple[list[Span], int]:
    """Lifetimes over as few columns as tell who meets whom, and the number of columns.

    Two lifetimes that meet share the later of their first steps, so steps where nothing starts say nothing
    new; and of starts without an end between them the last one sees everything the others see.
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


def _stack(spans: Sequence[Span], columns: int, sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Offsets by the device's rule. A column is as high as the end of the last buffer put on it."""
    height = [0] * columns
    offsets = [0] * len(spans)
    for i in order:
        begin, end = spans[i]
        offsets[i] = base = max(height[begin:end])
        height[begin:end] = [base + sizes[i]] * (end - begin)
    return offsets


def _column_loads(spans: Sequence[Span], columns: int, sizes: Sequence[int]) -> list[int]:
    """Bytes alive in each column."""
    change = [0] * (columns + 1)
    for (begin, end), size in zip(spans, sizes, strict=True):
        change[begin] += size
        change[end] -= size
    return list(accumulate(change[:columns]))


def _bound(spans: Sequence[Span], columns: int, sizes: Sequence[int]) -> int:
    return max(_column_loads(spans, columns, sizes), default=0)


def _score(problem: _Problem, order: Order) -> Score:
    ratios = []
    for load in problem.loads:
        offsets = _stack(problem.spans, problem.columns, load.sizes, order)
        ratios.append(load.ratio(max(map(add, offsets, load.sizes))))
    return max(ratios), sum(ratios)


def _best_order(problem: _Problem) -> Order:
    """The best packing, or what the search makes of the best few where none reaches every bound."""
    ranked = _ranked_packings(problem)
    best_score, best = ranked[0]
    work = _SEARCH_WORK
    for k, (_, start) in enumerate(ranked[:_SEARCHES]):
        if best_score[0] <= 1.0:
            break
        search = _Search(problem, start)
        search.run(work // (_SEARCHES - k))
        work -= search.work
        if search.score < best_score:
            best_score, best = search.score, search.order
    return best


# -------------------------------------------------------------------------------------------------- packers


def _ranked_packings(problem: _Problem) -> list[tuple[Score, Order]]:
    """The packings of different score, best first. Each is made for one load and judged at all of them."""
    found: dict[Score, Order] = {}
    for order in _packings(problem):
        score = _score(problem, order)
        if score[0] <= 1.0:
            return [(score, order)]
        found.setdefault(score, order)
    return sorted(found.items())


def _packings(problem: _Problem) -> Iterator[Order]:
    yield list(range(len(problem.spans)))
    for load in (*problem.loads, _blend(problem)):
        for priority in _priorities(problem, load):
            yield priority
            for best_fit in (False, True):
                offsets = _fill(problem.spans, load.sizes, priority, best_fit)
                yield sorted(priority, key=lambda i: (offsets[i], load.sizes[i]))


def _blend(problem: _Problem) -> _Load:
    """All loads in one, each weighted to the same bound: a packing for it favours none of them."""
    top = max(load.bound for load in problem.loads)
    sizes = [0] * len(problem.spans)
    for load in problem.loads:
        sizes = [
            total + size * top // max(1, load.bound) for total, size in zip(sizes, load.sizes, strict=True)
        ]
    return _load(problem.spans, problem.columns, sizes)


def _priorities(problem: _Problem, load: _Load) -> Iterator[Order]:
    """Sequences in which a packer may take the buffers; all ties fall to the caller's order."""
    spans, sizes = problem.spans, load.sizes
    live = _column_loads(spans, problem.columns, sizes)
    length = [end - begin for begin, end in spans]
    crowd = [max(live[begin:end]) for begin, end in spans]
    keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-sizes[i], -length[i]),
        lambda i: (-crowd[i], -sizes[i]),  # what is alive at the fullest step comes first
        lambda i: (-crowd[i], -length[i]),
        lambda i: (-sizes[i] * length[i], -sizes[i]),
        lambda i: (-length[i], -sizes[i]),  # forward and backward nest: the longest-lived at the bottom
        lambda i: (-spans[i][1], spans[i][0]),
        lambda i: (spans[i][0], -spans[i][1]),
        lambda i: (abs(sum(spans[i]) - problem.columns), -length[i]),  # from the loss outwards
    )
    for key in keys:
        yield sorted(range(len(spans)), key=key)


def _fill(spans: Sequence[Span], sizes: Sequence[int], priority: Order, best_fit: bool) -> list[int]:
    """Offsets when each buffer takes the lowest hole it fits in, or the tightest, else the top."""
    offsets = [0] * len(spans)
    placed: list[tuple[int, int, int, int]] = []  # offset, end, begin column, end column; by offset
    for i in priority:
        begin, end = spans[i]
        top, chosen, room = 0, -1, 0
        for offset, above, other_begin, other_end in placed:
            if other_begin < end and begin < other_end:
                gap = offset - top
                if gap >= sizes[i] and gap > 0 and (chosen < 0 or gap < room):
                    chosen, room = top, gap
                    if not best_fit:
                        break
                top = max(top, above)
        offsets[i] = top if chosen < 0 else chosen
        insort(placed, (offsets[i], offsets[i] + sizes[i], begin, end))
    return offsets


# --------------------------------------------------------------------------------------------------- search


class _Search:
    """Moves one buffer of a chain that holds up the worst peak; keeps every move that makes nothing worse.

    The peak is the length of a chain of buffers each resting on the one before: only an order that breaks the
    chain can lower it. `before[a][p]` are load a's column heights when the buffer at position p comes down,
    so a move is judged from the first position it changes, and dropped as soon as one buffer ends too high.
    """

    def __init__(self, problem: _Problem, order: Order) -> None:
        self.problem = problem
        self.random = random.Random(_SEED)
        self.work = 0
        self.before = [[[0] * problem.columns for _ in range(len(order) + 1)] for _ in problem.loads]
        self.ends = [[0] * len(order) for _ in problem.loads]
        self.meets = [
            [j for j, (b, e) in enumerate(problem.spans) if j != i and b < end and begin < e]
            for i, (begin, end) in enumerate(problem.spans)
        ]
        self.adopt(order, 0)

    def run(self, budget: int) -> None:
        """Improves `order` until it is at the bound, `budget` is used up, or nothing has helped for long."""
        idle = 0
        while self.score[0] > 1.0 and self.work < budget and idle < _PATIENCE:
            idle += 1
            order, since = self.propose()
            score = self.judge(order, since)
            if score is not None and score <= self.score:
                idle = 0 if score < self.score else idle
                self.adopt(order, since)

    def adopt(self, order: Order, since: int) -> None:
        """Makes `order`, which differs from position `since` on, the current one."""
        self.order = order
        self.position = {i: p for p, i in enumerate(order)}
        for load, ends, before in zip(self.problem.loads, self.ends, self.before, strict=True):
            height = before[since][:]
            for p in range(since, len(order)):
                i = order[p]
                begin, end = self.problem.spans[i]
                ends[i] = top = max(height[begin:end]) + load.sizes[i]
                height[begin:end] = [top] * (end - begin)
                before[p + 1] = height[:]
        self.work += (len(order) - since) * len(self.ends)
        ratios = [load.ratio(max(ends)) for load, ends in zip(self.problem.loads, self.ends, strict=True)]
        self.score: Score = (max(ratios), sum(ratios))
        self.worst = ratios.index(self.score[0])

    def judge(self, order: Order, since: int) -> Score | None:
        """The score of `order`, None if its worst ratio is above the current one."""
        ratios = []
        for load, before in zip(self.problem.loads, self.before, strict=True):
            limit = self.score[0] * load.bound * (1 + 1e-12)  # a peak must not fail by its own rounding
            height = before[since][:]
            for p in range(since, len(order)):
                begin, end = self.problem.spans[order[p]]
                top = max(height[begin:end]) + load.sizes[order[p]]
                if load.bound and top > limit:
                    self.work += p - since + 1
                    return None
                height[begin:end] = [top] * (end - begin)
            self.work += len(order) - since
            ratios.append(load.ratio(max(height)))
        return max(ratios), sum(ratios)

    def propose(self) -> tuple[Order, int]:
        """An order with a link of the chain moved past a buffer it meets, and where it starts to differ."""
        moving = self.random.choice(self.chain())
        source, target = self.position[moving], self.position[self.random.choice(self.meets[moving])]
        order = self.order[:]
        del order[source]
        order.insert(target, moving)
        return order, min(source, target)

    def chain(self) -> list[int]:
        """Buffers from the worst peak to the floor, each resting on the next; above the bound two or more."""
        ends, sizes = self.ends[self.worst], self.problem.loads[self.worst].sizes
        peak = max(ends)
        links = [self.random.choice([i for i, end in enumerate(ends) if end == peak])]
        while (floor := ends[links[-1]] - sizes[links[-1]]) > 0:
            place = self.position[links[-1]]
            below = [j for j in self.meets[links[-1]] if ends[j] == floor and self.position[j] < place]
            links.append(self.random.choice(below))
        return links
