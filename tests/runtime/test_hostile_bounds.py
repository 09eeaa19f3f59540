"""Bounds of a plan to the element: the last that is there works, the first that is not is refused. A guard page is
up to 63 bytes away, and what lies between may look like anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from case_sets import EVAL, GOLDEN, TRAIN, load, trainer

from minbuild.ir.flatbuffers.codec import decode, encode
from minbuild.planning.plan_encoding import EXPRESSIONS, plan_schema
from minbuild.training.library import Session, TrainerError, aligned_copy, arena_size

ARENA, TRAINED, PERSISTENT, NOTHING, CONSTANTS, BOUND = range(6)
BAD_PLAN = 2


class Bench:
    """A plan to rewrite, in memory of exactly the size that it asks for."""

    def __init__(self, name: str) -> None:
        self.case, self.built = load(GOLDEN / name), trainer(GOLDEN / name)
        self.tables = decode(plan_schema(), self.built.data)
        self.tables = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in self.tables.items()}
        self.sizes = [len(self.case.batch(0)[0])] * len(self.built.plan.symbols)
        self.values = self._evaluated()

    def _evaluated(self) -> list[int]:
        """All expressions at the sizes of the batch, which are those that the session is made for."""
        values: list[int] = []
        for a, b, op in self.tables["exprs"].tolist():
            name = EXPRESSIONS[op]
            if name in ("Constant", "Symbol"):
                values.append(a if name == "Constant" else self.sizes[a])
                continue
            x, y = values[a], values[b]
            made = {"Add": x + y, "Multiply": x * y, "Max": max(x, y), "Min": min(x, y)}
            made |= {"Stack": x + -(-y // 16) * 16, "Divide": x // y if y else 0}
            values.append(made[name])
        return values

    def bytes_of(self, index: int) -> int:
        tensor = self.tables["tensors"][index]
        sizes = {0: 0, 1: 4, 7: 8, 6: 4, 9: 1}
        at = int(tensor["shape"])
        dims = self.tables["shapes"][at + 1 : at + 1 + self.tables["shapes"][at]]
        return sizes[int(tensor["type"])] * int(np.prod([self.values[d] for d in dims]))

    def used(self, region: int) -> list[int]:
        """Tensors of a region that steps read or write."""
        seen = set(self.tables["args"].tolist())
        tensors = self.tables["tensors"]
        return [i for i in np.flatnonzero(tensors["region"] == region).tolist() if i in seen]

    def constant(self, value: int) -> int:
        return self.expr("Constant", value)

    def expr(self, op: str, a: int, b: int = 0) -> int:
        exprs = self.tables["exprs"]
        self.tables["exprs"] = np.concatenate([exprs, np.array([(a, b, EXPRESSIONS.index(op))], exprs.dtype)])
        return len(exprs)

    def cut(self, vector: str, count: int) -> bytes:
        """The plan with the last elements of a vector still in their place, but no longer counted."""
        data = bytearray(encode(plan_schema(), self.tables))

        def word(at: int) -> int:
            return int.from_bytes(data[at : at + 4], "little")

        root = word(0)
        vtable = root - int.from_bytes(data[root : root + 4], "little", signed=True)
        slot = vtable + 4 + 2 * list(self.tables).index(vector)
        field = root + int.from_bytes(data[slot : slot + 2], "little")
        at = field + word(field)
        assert word(at) == len(self.tables[vector])
        data[at : at + 4] = (word(at) - count).to_bytes(4, "little")
        return bytes(data)

    def status(self, plan: bytes | None = None) -> int:
        """What the first call that fails answers, of all that a trainer does."""
        try:
            data = plan or encode(plan_schema(), self.tables)
            arena = aligned_copy(b"\xff" * arena_size(self.built.library, data, self.sizes))
            session = Session(self.built.library, data, self.case.checkpoint, self.sizes, arena)
            session.run(TRAIN, self.case.batch(0))
            session.run(EVAL, self.case.eval_batch())
            session.optimizer_step()
        except TrainerError as error:
            return error.status
        return 0


@pytest.fixture(params=["dense", "residual"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


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


def more_tensors(tables: dict[str, Any]) -> str:
    tables["tensors"] = np.concatenate([tables["tensors"], tables["tensors"][tables["args"][:1]]])
    tables["args"][0] = len(tables["tensors"]) - 1
    return "tensors"


def more_kernels(tables: dict[str, Any]) -> str:
    tables["kernels"] = np.concatenate([tables["kernels"], tables["kernels"][tables["steps"]["kernel"][:1]]])
    tables["steps"]["kernel"][0] = len(tables["kernels"]) - 1
    return "kernels"


def more_steps(tables: dict[str, Any]) -> str:
    first, count = (int(tables["graphs"][member][2]) for member in ("steps", "step_count"))
    tables["graphs"]["steps"][2] = len(tables["steps"])
    tables["steps"] = np.concatenate([tables["steps"], tables["steps"][first : first + count]])
    return "steps"


def more_args(tables: dict[str, Any]) -> str:
    last = tables["steps"]["args"].argmax()
    tail = tables["args"][tables["steps"]["args"][last] :]
    tables["steps"]["args"][last] = len(tables["args"])
    tables["args"] = np.concatenate([tables["args"], tail])
    return "args"


def more_params(tables: dict[str, Any]) -> str:
    last = tables["steps"]["params"].argmax()
    tail = tables["params"][tables["steps"]["params"][last] :]
    tables["steps"]["params"][last] = len(tables["params"])
    tables["params"] = np.concatenate([tables["params"], tail])
    return "params"


def more_shapes(tables: dict[str, Any]) -> str:
    index = tables["args"][0]
    at = int(tables["tensors"]["shape"][index])
    shape = tables["shapes"][at : at + 1 + tables["shapes"][at]]
    tables["tensors"]["shape"][index] = len(tables["shapes"])
    tables["shapes"] = np.concatenate([tables["shapes"], shape])
    return "shapes"


def more_exprs(tables: dict[str, Any]) -> str:
    index = tables["args"][0]
    at = int(tables["tensors"]["at"][index])
    tables["tensors"]["at"][index] = len(tables["exprs"])
    tables["exprs"] = np.concatenate([tables["exprs"], tables["exprs"][at : at + 1]])
    return "exprs"


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
    moments = len(bench.tables["moments"])
    least = bench.tables["trainable_bytes"] * (2 + moments) + bench.tables["rollback_bytes"]
    bench.tables["persistent_bytes"] = least - missing
    assert bench.status() == BAD_PLAN


@pytest.mark.parametrize("size", [0, 16, 23])
def test_a_rollback_that_leaves_out_the_progress_is_refused(bench: Bench, size: int) -> None:
    bench.tables["rollback_bytes"] = size
    assert bench.status() == BAD_PLAN
