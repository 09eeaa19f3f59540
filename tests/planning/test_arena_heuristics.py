"""Packers: the quick way of filling holes among many buffers, and the priorities that few fills are for."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minbuild.planning.arena import heuristics
from minbuild.planning.arena.heuristics import ranked_orders
from minbuild.planning.arena.placement import Problem, load_of

ROW = st.tuples(st.integers(0, 9), st.integers(1, 6), st.sampled_from((0, 1, 2, 3, 5, 8, 100)))


@given(st.lists(ROW, min_size=1, max_size=40), st.randoms(), st.booleans())
@settings(max_examples=200)
def test_many_buffers_are_filled_in_as_few_are(
    rows: list[tuple[int, int, int]], random: Random, best_fit: bool
) -> None:
    spans, sizes = [(begin, begin + length) for begin, length, _ in rows], [size for *_, size in rows]
    priority = list(range(len(rows)))
    random.shuffle(priority)
    few = heuristics._fill(spans, sizes, priority, best_fit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heuristics, "_MANY_BUFFERS", 0)
        assert heuristics._fill(spans, sizes, priority, best_fit) == few


def test_a_single_fill_is_for_the_most_promising_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations are live until the backward pass comes to them, gradients between two neighbours of it."""
    depth = 30
    spans = [(i, 2 * depth - i) for i in range(depth)] + [(depth + i, depth + i + 2) for i in range(depth)]
    sizes = [(7 * i) % 5 + 1 for i in range(2 * depth)]
    columns = 2 * depth + 1
    problem = Problem(tuple(spans), columns, (load_of(spans, columns, sizes),))
    monkeypatch.setattr(heuristics, "_FILL_WORK", (2 * depth) ** 2 // 2)
    taken: list[list[int]] = []
    fill = heuristics._fill

    def counted(
        spans: list[tuple[int, int]], sizes: list[int], priority: list[int], best_fit: bool
    ) -> list[int]:
        taken.append(priority)
        return fill(spans, sizes, priority, best_fit)

    monkeypatch.setattr(heuristics, "_fill", counted)
    ranked_orders(problem, 1)
    crowded = list(heuristics._priorities(problem, problem.loads[0]))[2]
    assert taken == [crowded]
