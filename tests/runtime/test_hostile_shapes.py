"""Shapes, expressions and sizes of a plan: the largest that fits works, the next is refused."""

from __future__ import annotations

import numpy as np
import pytest
from plan_bench import Bench, more_steps

from minbuild.planning.plan_encoding import IDLE_VERSION

ARENA, TRAINED, PERSISTENT, NOTHING, CONSTANTS, BOUND = range(6)
BAD_PLAN = 2


def test_a_rank_above_the_most_is_refused(bench: Bench) -> None:
    one = bench.constant(1)
    shapes = bench.tables["shapes"]
    for rank in (9, 10):
        bench.tables["shapes"] = np.concatenate([shapes, np.array([rank, *[one] * rank, 0, 0], shapes.dtype)])
        for index in bench.used(ARENA)[:3]:
            bench.tables["tensors"]["shape"][index] = len(shapes)
            assert bench.status() == BAD_PLAN


def test_a_shape_that_goes_on_beyond_the_table_is_refused(bench: Bench) -> None:
    shapes = bench.tables["shapes"]
    bench.tables["shapes"] = np.concatenate([shapes, np.array([1], shapes.dtype)])
    bench.tables["tensors"]["shape"][bench.used(ARENA)[0]] = len(shapes)
    assert bench.status() == BAD_PLAN


def test_dimensions_whose_product_overflows_are_refused(bench: Bench) -> None:
    """2^16 * 2^16 * 2^16 is 0 in 32 and 2^48 in 64 bits; 2^31 * 2^31 * 4 is 0 in 64."""
    shapes = bench.tables["shapes"]
    for sizes in (
        (2**16,) * 3,
        (2**16, 2**16, 2**16, 2**16),
        (2**30, 2**30, 16),
        (2**30, 2**2),
        (2**31 - 1,),
    ):
        dims = [bench.constant(n) for n in sizes]
        at = len(bench.tables["shapes"])
        bench.tables["shapes"] = np.concatenate(
            [bench.tables["shapes"], np.array([len(dims), *dims], shapes.dtype)]
        )
        for index in bench.used(ARENA)[:2]:
            kept = bench.tables["tensors"]["shape"][index]
            bench.tables["tensors"]["shape"][index] = at
            assert bench.status() == BAD_PLAN, sizes
            bench.tables["tensors"]["shape"][index] = kept


@pytest.mark.parametrize(
    "sizes", [(2**30, 2**30, 16), (2**16,) * 4, (2**30, 2**30, 2**4, 3), (-1, -1), (1,) * 9]
)
def test_a_shape_that_no_kernel_looks_at_is_refused_all_the_same(sizes: tuple[int, ...]) -> None:
    """Of a product that overflows, or of too many dimensions: a kernel that only counts elements finds none, or one."""
    bench = Bench("dense")
    tables = bench.tables
    relu = next(i for i, k in enumerate(bench.built.plan.kernels) if k.function == "relu")
    wrong, right = [bench.constant(n) for n in sizes], [bench.constant(4)]
    step = tables["steps"][tables["steps"]["kernel"] == relu][:1].copy()
    place = bench.constant(0)
    for dims, status in ((right, 0), (wrong, BAD_PLAN)):
        tensor = tables["tensors"][bench.used(ARENA)[:1]].copy()
        tensor["shape"], tensor["at"], tensor["type"] = len(tables["shapes"]), place, 1
        tables["shapes"] = np.concatenate([tables["shapes"], np.array([len(dims), *dims], np.uint16)])
        more_steps(tables)
        tables["graphs"]["step_count"][2] += 1
        step["args"] = len(tables["args"])
        tables["args"] = np.concatenate([tables["args"], np.full(2, len(tables["tensors"]), np.uint16)])
        tables["tensors"] = np.concatenate([tables["tensors"], tensor])
        tables["steps"] = np.concatenate([tables["steps"], step])
        assert bench.status() == status


@pytest.mark.parametrize("elements", [-8, -1, 1, 8])
@pytest.mark.parametrize("argument", [0, 1, 2, 3])
def test_moments_of_another_length_than_the_parameters_are_refused(argument: int, elements: int) -> None:
    bench = Bench("dense")
    tables, adamw = (
        bench.tables,
        next(i for i, k in enumerate(bench.built.plan.kernels) if k.function == "adamw"),
    )
    (step,) = tables["steps"][tables["steps"]["kernel"] == adamw]
    index = tables["args"][step["args"] + argument]
    count = bench.bytes_of(index) // 4
    shape = np.array([1, bench.constant(count + elements)], np.uint16)
    tables["tensors"]["shape"][index] = len(tables["shapes"])
    tables["shapes"] = np.concatenate([tables["shapes"], shape])
    assert bench.status() == BAD_PLAN


@pytest.mark.parametrize("op", ["Add", "Multiply", "Stack"])
def test_values_that_overflow_are_refused(bench: Bench, op: str) -> None:
    """Also where nothing uses them."""
    most = bench.constant(2**31 - 1)
    assert bench.status() == 0
    bench.expr(op, most, most)
    assert bench.status() != 0


def test_an_expression_is_made_of_earlier_ones(bench: Bench) -> None:
    """Also where nothing uses it: there is no telling what a later one is."""
    own = len(bench.tables["exprs"])
    for a, b in ((own, 0), (0, own), (own + 1, 0), (0, own + 1), (65535, 0), (0, 65535)):
        kept = bench.tables["exprs"]
        bench.expr("Max", a, b)
        assert bench.status() != 0, (a, b)
        bench.tables["exprs"] = kept
    bench.expr("Max", own - 1, own - 1)
    assert bench.status() == 0


def test_eight_free_sizes_are_the_most(bench: Bench) -> None:
    for count, status in ((8, 0), (9, BAD_PLAN)):
        bench.tables["defaults"] = np.ones(count, np.int32)
        bench.sizes = [bench.sizes[0], *[1] * (count - 1)]
        assert bench.status() == status


def test_names_end_where_the_table_does(bench: Bench) -> None:
    bench.tables["names"][-1] = ord("x")
    assert bench.status() == BAD_PLAN


@pytest.mark.parametrize("difference", [-1, 1])
def test_another_version_is_refused(bench: Bench, difference: int) -> None:
    bench.tables["version"] += difference
    assert bench.status() == BAD_PLAN


def test_no_more_is_trained_than_there_is(bench: Bench) -> None:
    bench.tables["trained"] = len(bench.tables["parameters"]) + 1
    assert bench.status() == BAD_PLAN


def test_arrays_that_a_session_has_no_room_for_are_refused(bench: Bench) -> None:
    bench.tables["arena"] = len(bench.tables["exprs"])
    assert bench.status() == BAD_PLAN


@pytest.mark.parametrize("missing", [1, 8, 16])
def test_what_persists_has_room_for_gradients_and_moments(bench: Bench, missing: int) -> None:
    moments = len(bench.tables["moments"]) * (int(bench.tables["version"]) & IDLE_VERSION == 0)
    least = bench.tables["trainable_bytes"] * (2 + moments) + bench.tables["rollback_bytes"]
    bench.tables["persistent_bytes"] = least - missing
    assert bench.status() == BAD_PLAN


@pytest.mark.parametrize("size", [0, 16, 23])
def test_a_rollback_that_leaves_out_the_progress_is_refused(bench: Bench, size: int) -> None:
    bench.tables["rollback_bytes"] = size
    assert bench.status() == BAD_PLAN
