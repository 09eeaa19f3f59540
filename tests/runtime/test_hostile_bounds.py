"""Bounds of a plan to the element: the last that is there works, the first that is not is refused. A guard page is
up to 63 bytes away, and what lies between may look like anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from case_sets import EVAL, TRAIN
from plan_bench import (
    Bench,
    more_args,
    more_exprs,
    more_kernels,
    more_params,
    more_shapes,
    more_steps,
    more_tensors,
)

ARENA, TRAINED, PERSISTENT, NOTHING, CONSTANTS, BOUND = range(6)
BAD_PLAN = 2


def test_the_plan_works_in_memory_of_exactly_its_size(bench: Bench) -> None:
    assert bench.status() == 0


@pytest.mark.parametrize(
    ("vector", "member", "of"),
    [
        *(("tensors", "shape", "shapes"), ("tensors", "at", "exprs"), ("steps", "kernel", "kernels")),
        *(("steps", "args", "args"), ("steps", "params", "params"), ("args", "", "tensors")),
        *(("parameters", "tensor", "tensors"), ("ports", "tensor", "tensors"), ("graphs", "steps", "steps")),
    ],
)
def test_an_index_of_what_is_just_not_there_is_refused(
    bench: Bench, vector: str, member: str, of: str
) -> None:
    table, beyond = bench.tables[vector], len(bench.tables[of])
    column = table[member] if member else table
    wanted = bench.used(ARENA)[-1] if vector == "tensors" else 0
    column[wanted] = beyond
    assert bench.status() != 0


@pytest.mark.parametrize(
    "more", [more_tensors, more_kernels, more_steps, more_args, more_params, more_shapes, more_exprs]
)
def test_what_lies_just_behind_a_table_is_none_of_it(
    bench: Bench, more: Callable[[dict[str, Any]], str]
) -> None:
    """However well-formed it is: here it is what the table held, and the table's count is one less."""
    vector = more(bench.tables)
    assert bench.status() == 0, "counted, it works"
    assert bench.status(bench.cut(vector, 1)) == BAD_PLAN


@pytest.mark.parametrize("graph", [TRAIN, EVAL, 2])
def test_a_graph_without_steps_is_absent(bench: Bench, graph: int) -> None:
    """It takes no inputs either: with nothing to do, a call would succeed."""
    for member in ("step_count", "output_count"):
        bench.tables["graphs"][member][graph] = 0
    assert bench.status() == 9


def test_the_last_step_of_a_graph_is_in_the_table(bench: Bench) -> None:
    bench.tables["graphs"]["step_count"][2] += 1
    assert bench.status() != 0


@pytest.mark.parametrize("region", [ARENA, TRAINED, PERSISTENT, CONSTANTS])
@pytest.mark.parametrize("more", [4, 8, 16, 64])
def test_a_tensor_that_ends_just_beyond_its_region_is_refused(bench: Bench, region: int, more: int) -> None:
    ends = {
        ARENA: bench.values[bench.tables["arena"]],
        TRAINED: bench.tables["trainable_bytes"],
        PERSISTENT: bench.tables["persistent_bytes"],
        CONSTANTS: 8 * len(bench.tables["constants"]),
    }
    for index in bench.used(region):
        if bench.tables["tensors"]["type"][index] != 1:
            continue
        kept = bench.tables["tensors"]["at"][index]
        size = bench.bytes_of(index)
        bench.tables["tensors"]["at"][index] = bench.constant(ends[region] - size + more)
        assert bench.status() != 0, f"tensor {index}"
        bench.tables["tensors"]["at"][index] = kept


def test_a_tensor_at_an_address_that_its_type_cannot_have_is_refused(bench: Bench) -> None:
    for off in (1, 2, 3):
        index = bench.used(ARENA)[0]
        bench.tables["tensors"]["at"][index] = bench.constant(off)
        assert bench.status() == BAD_PLAN


def test_a_region_that_is_just_not_there_is_refused(bench: Bench) -> None:
    regions = BOUND + len(bench.tables["ports"]) + len(bench.tables["parameters"])
    for index in bench.used(ARENA):
        kept = bench.tables["tensors"][index].copy()
        bench.tables["tensors"]["region"][index] = regions
        bench.tables["tensors"]["at"][index] = bench.constant(0)
        assert bench.status() == BAD_PLAN
        bench.tables["tensors"][index] = kept


def test_what_is_bound_from_outside_ends_where_its_shape_does(bench: Bench) -> None:
    """An input's region is as large as the input: a tensor in it that starts later must be refused."""
    for index in bench.used(BOUND):
        bench.tables["tensors"]["at"][index] = bench.constant(16)
        assert bench.status() != 0
        views = bench.tables["tensors"][
            index : index + 1
        ].copy()  # another tensor of the same region, further on
        bench.tables["tensors"]["at"][index] = bench.constant(0)
        views["at"] = bench.constant(4)
        bench.tables["tensors"] = np.concatenate([bench.tables["tensors"], views])
        args = bench.tables["args"]
        args[args == index] = len(bench.tables["tensors"]) - 1
        assert bench.status() == BAD_PLAN


def test_read_only_regions_are_never_written(bench: Bench) -> None:
    """Whatever a step writes, moved into constants or an input or a frozen parameter of the same size: refused before
    the first byte."""
    tensors, written = bench.tables["tensors"], 0
    constant = bench.constant(0)
    for step in bench.tables["steps"]:
        index = int(bench.tables["args"][step["args"]])
        if tensors["region"][index] != ARENA:
            continue
        kept = tensors[index].copy()
        bench.tables["constants"] = np.zeros(-(-bench.bytes_of(index) // 8) + 1, np.uint64)
        for region in (CONSTANTS, BOUND, BOUND + 1):
            tensors["region"][index], tensors["at"][index] = region, constant
            assert bench.status() == BAD_PLAN, f"tensor {index} in region {region}"
            written += 1
        tensors[index] = kept
        if written > 20:
            break
    assert written
