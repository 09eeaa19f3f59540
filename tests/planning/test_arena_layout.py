"""Arena layout: known optima, orders and offsets, and what may lie on what."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from arena_buffers import (
    BATCH,
    BATCHES,
    buffers_of,
    check,
    lifespans,
    training_graph,
    worst_ratio,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from minbuild.ir import Buffer
from minbuild.ir.dims import Dim, symbol
from minbuild.planning.arena import layout as memory
from minbuild.planning.arena.layout import aligned, buffer_sizes, lower_bound, order_buffers, solution_of
from minbuild.planning.arena.placement import Solution
from minbuild.planning.arena.supports import supports_of

pytestmark = pytest.mark.unit


def test_the_solution_follows_the_device_rule_literally() -> None:
    """The rule, written as its quadratic definition, on random lifespans including empty and odd sizes."""
    rng = random.Random(3)
    for count in (1, 2, 7, 40, 120):
        rows = [
            (a, a + rng.randrange(12), rng.randrange(200)) for a in (rng.randrange(60) for _ in range(count))
        ]
        buffers = buffers_of(*rows)
        sizes = [size for _, _, size in rows]
        expected: list[int] = []
        for i, (first, last, _) in enumerate(rows):
            below = [
                expected[j] + -(-sizes[j] // 16) * 16
                for j in range(i)
                if rows[j][0] <= last and first <= rows[j][1]
            ]
            expected.append(max(below, default=0))
        solution = solution_of(buffers, sizes)
        assert solution.offsets == tuple(expected)
        assert solution.height == max(o + -(-s // 16) * 16 for o, s in zip(expected, sizes, strict=True))


def test_lower_bound_is_the_peak_step() -> None:
    rng = random.Random(4)
    for _ in range(20):
        rows = [(a, a + rng.randrange(9), rng.randrange(99)) for a in (rng.randrange(30) for _ in range(25))]
        live = [sum(aligned(n) for a, b, n in rows if a <= step <= b) for step in range(40)]
        assert lower_bound(buffers_of(*rows), [n for _, _, n in rows]) == max(live)


def test_nothing_to_place() -> None:
    assert order_buffers((), BATCHES) == ()
    assert solution_of((), ()) == Solution((), 0)
    assert lower_bound((), ()) == 0


def test_touching_lifespans_are_alive_together() -> None:
    solution = solution_of(buffers_of((0, 3, 16), (3, 5, 16), (4, 6, 16)), [16, 16, 16])
    assert solution == Solution((0, 16, 32), 48)


@pytest.mark.parametrize(
    ("rows", "message"),
    [([(0, 1, 4), (3, 2, 4)], "'b1' ends at step 2"), ([(0, 1, 4 - BATCH * 8)], "'b0' has -4 bytes")],
)
def test_impossible_buffers_are_refused_by_name(rows: list[tuple[int, int, Dim]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        order_buffers(buffers_of(*rows), BATCHES)


def test_an_assignment_is_required() -> None:
    with pytest.raises(ValueError, match="symbol values"):
        order_buffers(buffers_of((0, 1, 4)), ())


# ------------------------------------------------------------------------------------------------- the order


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0, 64)],
        [(i, i + 1, 64) for i in range(9)],  # a chain: two slots
        [(i, 18 - i, 16 * (i + 1)) for i in range(9)],  # forward and backward nest
        [(0, 9, 16), (0, 1, 160), (1, 2, 16), (2, 3, 160), (3, 9, 16), (9, 9, 144)],
        [(0, 2, 16), (1, 8, 1600), (3, 8, 32)],  # first fit by start leaves 16 bytes nobody fits in
        [(0, 4, 48), (0, 1, 16), (0, 2, 32), (2, 4, 16), (3, 6, 32), (5, 8, 48), (5, 6, 16), (7, 8, 48)],
    ],
)
def test_known_cases_reach_the_bound(rows: list[tuple[int, int, Dim]]) -> None:
    assert worst_ratio(order_buffers(buffers_of(*rows), [{}]), [{}]) == 1.0


# First step, last step, bytes per sample, bytes besides: the arena of a LeNet training graph.
LENET = """
    0 34 18816 0  1 2 18816 0  2 32 4704 0  2 33 9408 0  3 31 6400 0  4 5 6400 0  5 7 1600 0
    5 30 3200 0  6 29 0 32  7 27 1600 0  8 9 480 0  9 24 480 0  10 11 336 0  11 19 336 0  12 13 40 0
    13 35 0 4  13 14 40 0  14 18 40 0  15 16 0 40  18 19 336 0  19 23 336 0  20 21 0 336
    23 24 480 0  24 28 480 0  25 26 0 480  28 29 1600 0  29 30 1600 0  30 31 6400 0  31 32 6400 0
    32 33 4704 0  33 34 18816 0  34 35 18816 0
"""


def test_a_convolution_net_the_packers_alone_miss() -> None:
    """All packers end 3 % or more above the bound; the search reaches it at every batch."""
    numbers = [int(word) for word in LENET.split()]
    rows = [(*numbers[k : k + 2], numbers[k + 2] * BATCH + numbers[k + 3]) for k in range(0, len(numbers), 4)]
    buffers = buffers_of(*rows)
    assert worst_ratio(order_buffers(buffers, BATCHES), BATCHES) == 1.0
    assert worst_ratio(order_buffers(buffers, BATCHES, search=0), BATCHES) > 1.03


def forget() -> None:
    memory._best_order.cache_clear()
    memory._packings.cache_clear()


@pytest.fixture
def nothing_remembered() -> Iterator[None]:
    """Layouts that were found before do not count, nor do those of the test later."""
    forget()
    yield
    forget()


@pytest.mark.usefixtures("nothing_remembered")
@pytest.mark.parametrize(("score", "searched"), [(1.0, False), (1.001, True), (1.5, True)])
def test_the_search_goes_on_until_the_bound_is_reached(
    score: float, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    class Nothing:
        """A search that finds nothing better."""

        def __init__(self, problem: object, start: tuple[int, ...]) -> None:
            starts.append(start)
            self.work, self.score, self.order = 0, (2.0, 2.0), start

        def run(self, work: int) -> None:
            given.append(work)

    given: list[int] = []
    monkeypatch.setattr(memory, "Search", Nothing)
    monkeypatch.setattr(memory, "ranked_orders", lambda problem, count: [((score, score), (1, 0))])
    buffers = buffers_of((0, 1, 16), (1, 2, 16))
    assert memory.order_buffers(buffers, [{}]) == (buffers[1], buffers[0])
    assert starts == [(1, 0)] * searched
    memory.order_buffers(buffers, [{}], search=8)
    assert len(given) == 2 * searched and given[1:] == [8 * work for work in given[:1]] and 0 not in given


def brute_force_peak(buffers: Sequence[Buffer], sizes: Sequence[int]) -> int:
    """The best peak of all orders."""
    pairs = list(zip(buffers, sizes, strict=True))
    return min(solution_of(*zip(*p, strict=True)).height for p in itertools.permutations(pairs))  # type: ignore[arg-type]


def test_small_cases_are_optimal() -> None:
    """Also where the optimum lies above the bound, which the search cannot know."""
    rng = random.Random(11)
    for _ in range(12):
        rows = [
            (a, a + rng.randrange(4), 16 * rng.randrange(1, 9)) for a in (rng.randrange(7) for _ in range(6))
        ]
        buffers = buffers_of(*rows)
        order = order_buffers(buffers, [{}])
        assert solution_of(order, buffer_sizes(order, {})).height == brute_force_peak(
            buffers, buffer_sizes(buffers, {})
        )


def test_one_order_serves_conflicting_assignments() -> None:
    """Either assignment alone tempts into stacking that the other pays for."""
    x, y = symbol("x"), symbol("y")
    rows = [(0, 2, 16 * x), (1, 4, 16 * y), (3, 6, 16 * x), (5, 8, 16 * y), (7, 9, 16 * x), (0, 9, 16)]
    assignments = [{"x": 50, "y": 1}, {"x": 1, "y": 50}, {"x": 20, "y": 20}]
    order = order_buffers(buffers_of(*rows), assignments)
    assert worst_ratio(order, assignments) <= 1.02
    for assignment in [*assignments, {"x": 3, "y": 1000}, {"x": 0, "y": 7}]:
        check(order, assignment)


def test_four_hundred_buffers_are_quick() -> None:
    """The budget is about a second; the limit leaves room for a busy machine."""
    buffers = training_graph(125, 7, True)
    assert len(buffers) > 350
    begin = time.process_time()
    order = order_buffers(buffers, BATCHES)
    assert time.process_time() - begin < 6.0
    assert worst_ratio(order, BATCHES) <= 1.03


def test_order_is_deterministic_and_a_permutation() -> None:
    buffers = training_graph(20, 5, True)
    order = order_buffers(buffers, BATCHES)
    assert order == order_buffers(buffers, BATCHES)
    assert sorted(b.name for b in order) == sorted(b.name for b in buffers)


def test_batches_that_only_scale_cost_no_peak() -> None:
    """Three proportional loads are one: the layout of batch 1 is the layout of all."""
    buffers = tuple(
        replace(b, bytes=16 * BATCH * (1 + i % 7)) for i, b in enumerate(training_graph(15, 2, False))
    )
    assert order_buffers(buffers, BATCHES) == order_buffers(buffers, BATCHES[:1])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(lifespans, min_size=1, max_size=24))
def test_any_buffers_give_a_sound_layout(rows: list[tuple[int, int, int, bool]]) -> None:
    buffers = buffers_of(*((a, a + n, size * BATCH if grows else size) for a, n, size, grows in rows))
    order = order_buffers(buffers, BATCHES)
    assert sorted(order, key=lambda b: b.name) == sorted(buffers, key=lambda b: b.name)
    given_order = worst_ratio(buffers, BATCHES)
    assert worst_ratio(order, BATCHES) <= given_order
    for assignment in (*BATCHES, {"batch": 0}, {"batch": 17}):
        check(order, assignment)


# -------------------------------------------------------------------------------------------- supports


def supports_by_definition(buffers: Sequence[Buffer]) -> tuple[list[list[int]], list[int]]:
    """The quadratic definition: of the earlier buffers that are live together with each one, those below no other."""
    below: list[set[int]] = []
    found = []
    for i, buffer in enumerate(buffers):
        together = {
            j for j in range(i) if buffers[j].first <= buffer.last and buffer.first <= buffers[j].last
        }
        covered = set().union(*(below[j] for j in together))
        found.append(sorted(together - covered))
        below.append(together | covered)
    return found, sorted(set(range(len(buffers))) - set().union(*below))


@given(
    st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25), st.integers(0, 1)), max_size=40),
)
@settings(max_examples=400, deadline=None)
def test_supports_follow_their_definition(rows: list[tuple[int, int, int]]) -> None:
    buffers = buffers_of(*((a, a + length * long, 16) for a, length, long in rows))
    assert supports_of(buffers) == supports_by_definition(buffers)
