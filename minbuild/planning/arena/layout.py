"""Arena layout: the order in which the device stacks the buffers of one procedure.

The device gives buffer i the offset `max(offset[j] + size[j])` over all earlier buffers j alive at the same
time (0 without any), sizes rounded up to `ALIGNMENT`. That is valid for every value of the symbols, and any
packing, sorted by offset, comes out of it no higher than it was; so only the order is left to choose. It is
chosen for the smallest peak at a few representative symbol values: packers that fill holes, their layouts
sorted by offset, then a seeded search that moves the buffers holding up the peak. All budgets are counts, so
the same input gives the same order on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import add

from minbuild.ir import Buffer
from minbuild.ir.dims import evaluate
from minbuild.planning.arena.heuristics import ranked_orders
from minbuild.planning.arena.local_search import Search
from minbuild.planning.arena.placement import (
    Order,
    Problem,
    Score,
    Solution,
    bound_of,
    lifespans_of,
    load_of,
    stack,
)

ALIGNMENT = 16  # bytes; the device rounds every size up to it

_SEARCH_WORK = 480_000  # buffers put down by all searches together, about a microsecond each
_LARGEST_SEARCH = 6_000_000  # buffers times columns: a search keeps the skyline behind every buffer
_REMEMBERED = 32  # layouts: plans for a budget of RAM have routines in common
_SEARCHES = 3  # packings the search starts from; more starts leave each too little work


def aligned(size: int) -> int:
    """`size` rounded up to the arena's alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def buffer_sizes(buffers: Sequence[Buffer], assignment: Mapping[str, int]) -> tuple[int, ...]:
    """Bytes of each buffer at the given symbol values, not yet aligned."""
    return tuple(evaluate(buffer.bytes, assignment) for buffer in buffers)


def solution_of(buffers: Sequence[Buffer], sizes: Sequence[int]) -> Solution:
    """The layout of `buffers`, of `sizes` in bytes, put down in the order given, exactly as the device does it."""
    spans, columns = lifespans_of(buffers)
    rounded = _aligned(buffers, sizes)
    offsets = stack(spans, columns, rounded, range(len(spans)))
    return Solution(tuple(offsets), max(map(add, offsets, rounded), default=0))


def lower_bound(buffers: Sequence[Buffer], sizes: Sequence[int]) -> int:
    """The most bytes alive at any one step, aligned: no layout of these lifespans is smaller."""
    spans, columns = lifespans_of(buffers)
    return bound_of(spans, columns, _aligned(buffers, sizes))


def order_buffers(
    buffers: Sequence[Buffer], assignments: Sequence[Mapping[str, int]], search: int = 1
) -> tuple[Buffer, ...]:
    """The placement order of `buffers` with the smallest worst ratio of peak to lower bound over `assignments`: the
    best packing, improved by a search that takes `search` times the usual work.

    Ties fall to the sum of the ratios. Raises ValueError without assignments, for a lifespan that ends before
    it starts, and for a negative size.
    """
    if not assignments:
        raise ValueError("order_buffers needs the symbol values to plan for; give one assignment or more")
    if not buffers:
        return ()
    spans, columns = lifespans_of(buffers)
    loads = [load_of(spans, columns, _aligned(buffers, buffer_sizes(buffers, a))) for a in assignments]
    problem = Problem(tuple(spans), columns, tuple(dict.fromkeys(loads)))
    return tuple(buffers[i] for i in _best_order(problem, search))


def _aligned(buffers: Sequence[Buffer], sizes: Sequence[int]) -> list[int]:
    for buffer, size in zip(buffers, sizes, strict=True):
        if size < 0:
            raise ValueError(f"buffer '{buffer.name}' has {size} bytes; sizes start at 0")
    return [aligned(size) for size in sizes]


@lru_cache(_REMEMBERED)
def _best_order(problem: Problem, search: int) -> Order:
    """The best packing, or what the search makes of the best few where none reaches every bound."""
    ranked = _packings(problem)
    best_score, best = ranked[0]
    work = _SEARCH_WORK * search
    for k, (_, start) in enumerate(ranked[: _SEARCHES if search else 0]):
        if best_score[0] <= 1.0 or not _searched(problem):
            break
        local = Search(problem, start)
        local.run(work // (_SEARCHES - k))
        work -= local.work
        if local.score < best_score:
            best_score, best = local.score, local.order
    return best


@lru_cache(_REMEMBERED)
def _packings(problem: Problem) -> tuple[tuple[Score, Order], ...]:
    return tuple(ranked_orders(problem, _SEARCHES if _searched(problem) else 1))


def _searched(problem: Problem) -> bool:
    """True if a search is affordable, which starts from several packings."""
    return len(problem.spans) * problem.columns <= _LARGEST_SEARCH
