"""Buffers with lifespans, as trainers have them: shared by tests of the arena."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from minbuild.ir import Buffer
from minbuild.ir.dims import Dim, symbol
from minbuild.planning.arena.layout import buffer_sizes, lower_bound, solution_of
from minbuild.planning.arena.validator import validate

BATCH = symbol("batch")
BATCHES = ({"batch": 1}, {"batch": 8}, {"batch": 32})


def buffers_of(*rows: tuple[int, int, Dim]) -> tuple[Buffer, ...]:
    return tuple(Buffer(f"b{i}", first, last, size) for i, (first, last, size) in enumerate(rows))


def accesses_of(buffers: Sequence[Buffer]) -> list[list[str]]:
    """Each buffer is touched at its first and last step."""
    accesses: list[list[str]] = [[] for _ in range(max((b.last for b in buffers), default=-1) + 1)]
    for buffer in buffers:
        accesses[buffer.first].append(buffer.name)
        accesses[buffer.last].append(buffer.name)
    return accesses


def worst_ratio(order: Sequence[Buffer], assignments: Sequence[dict[str, int]]) -> float:
    ratios = [1.0]
    for assignment in assignments:
        sizes = buffer_sizes(order, assignment)
        bound = lower_bound(order, sizes)
        ratios.append(solution_of(order, sizes).height / bound if bound else 1.0)
    return max(ratios)


def check(order: Sequence[Buffer], assignment: dict[str, int]) -> None:
    solution = solution_of(order, buffer_sizes(order, assignment))
    validate("train", order, solution.offsets, solution.height, assignment, accesses_of(order))


def training_graph(layers: int, seed: int, gradients_kept: bool) -> tuple[Buffer, ...]:
    """Buffers of a made-up network: saved activations, masks, scratch, activation and weight gradients."""
    rng = random.Random(seed)
    size, rows = rng.choice([64, 1024, 30000]), []
    for layer in range(layers):
        back, end = 2 * layers - layer, 2 * layers + 1
        if rng.random() < 0.4:
            size = max(16, int(size * rng.choice([0.25, 0.5, 2, 3, 2 * rng.random()])))
        saved = back if rng.random() < 0.7 else min(layer + rng.choice([1, 1, 2, 5]), end)
        rows.append((layer, saved, size * BATCH))
        if rng.random() < 0.3:
            rows.append((layer, back, (size + 3) // 4 * BATCH))
        if rng.random() < 0.3:
            rows.append((layer, layer, int(size * 2 * rng.random())))
        rows.append((back, back + 1 + rng.choice([0, 0, 0, 3]), size * BATCH))
        if rng.random() < 0.5:
            rows.append((back, end if gradients_kept else back + 1, rng.randrange(1, 20000)))
    return buffers_of(*rows)


# -------------------------------------------------------------------------------------------- solution, bound


lifespans = st.tuples(st.integers(0, 25), st.integers(0, 12), st.integers(0, 300), st.booleans())
