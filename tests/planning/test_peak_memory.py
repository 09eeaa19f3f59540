"""The live tensors at the peak of an arena, and the bytes of what loops read one sample at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from linear_model import FLOAT, linear, lowered
from procedures import call, procedure_of

from minbuild.ir import Role, Routine, TensorType
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.passes.manager import optimize
from minbuild.planning.arena.buffers import tiled_of
from minbuild.planning.arena.layout import aligned, buffer_sizes, lower_bound
from minbuild.planning.arena.peak_memory import arena_of, arena_peak
from minbuild.planning.plan import build_plan

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def train() -> Routine:
    return build_plan(optimize(lowered(linear()), registry()), registry()).routines[0]


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_live_tensors_add_up_to_the_bound(train: Routine, batch: int) -> None:
    sizes = buffer_sizes(train.buffers, {"batch": batch})
    arena = arena_of(linear(), train, {"batch": batch})
    assert arena.peak == arena_peak(train, {"batch": batch}) >= arena.lower_bound
    assert arena.lower_bound == lower_bound(train.buffers, sizes) == sum(t.bytes for t in arena.live) > 0
    there = {
        b.name: aligned(size)
        for b, size in zip(train.buffers, sizes, strict=True)
        if b.first <= arena.step <= b.last
    }
    assert {t.name: t.bytes for t in arena.live} == there
    assert arena.node == train.steps[arena.step].node
    assert [t.bytes for t in arena.live] == sorted(there.values(), reverse=True)


def test_nothing_lives_in_an_arena_without_buffers(train: Routine) -> None:
    arena = arena_of(linear(), replace(train, buffers=()), {"batch": 4})
    assert (arena.graph, arena.peak, arena.lower_bound, arena.live) == ("train", 0, 0, ())


def test_only_temporaries_are_tiled() -> None:
    """An input that a loop reads sample by sample lies with the caller."""
    batch = symbol("batch")
    whole, one = TensorType(FLOAT, (batch, 6)), TensorType(FLOAT, (1, 6))
    procedure = procedure_of(
        (call(":Relu", "x", "t"), call(":Add", "one x,one t", "y")),
        {"x": whole, "t": whole, "y": whole, "one x": one, "one t": one},
        alias={"one x": "x", "one t": "t"},
        loops=(range(1, 2),),
        samples=batch,
    )
    samples = {n: replace(procedure.values[n], sample=True) for n in ("one x", "one t")}
    procedure = replace(procedure, values={**procedure.values, **samples})
    assert procedure.values["x"].role is Role.INPUT
    assert tiled_of(procedure) == {"t": 24 * batch}
