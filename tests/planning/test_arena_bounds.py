"""How near the arena of random training graphs comes to the lower bound."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from arena_buffers import (
    BATCHES,
    check,
    training_graph,
    worst_ratio,
)

from minbuild.planning.arena.layout import order_buffers


@pytest.mark.parametrize(
    ("assignments", "mean", "worst"),
    [(BATCHES[:1], 1.003, 1.01), (BATCHES[2:], 1.006, 1.035), (BATCHES, 1.01, 1.05)],
)
def test_random_training_graphs_are_near_the_bound(
    assignments: Sequence[dict[str, int]], mean: float, worst: float
) -> None:
    """One batch size alone is the easier task: kept weight gradients weigh differently at each."""
    ratios = []
    for layers, seed, kept in itertools.product((4, 12, 40), range(4), (False, True)):
        order = order_buffers(training_graph(layers, seed, kept), assignments)
        ratios.append(worst_ratio(order, assignments))
        check(order, {"batch": 5})
    assert sum(ratios) / len(ratios) <= mean
    assert max(ratios) <= worst
