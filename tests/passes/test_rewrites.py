"""Single rewrites and analyses, on procedures of a few calls: what each must leave alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from linear_model import FLOAT
from procedures import call, procedure_of

from minbuild.ir import Call, Procedure, Role, TensorType
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.passes.analysis.effects import Effects, Writes, any_in
from minbuild.passes.analysis.liveness import live_ranges
from minbuild.passes.invariants import ACCUMULATOR
from minbuild.passes.rewrite.code_sinking import sink_code
from minbuild.passes.rewrite.copy_elision import elide_copies
from minbuild.passes.rewrite.fuse_accumulation import fuse_gradient_accumulation
from minbuild.passes.rewrite.in_place import run_in_place

pytestmark = pytest.mark.unit

SQUARE, WIDE = TensorType(FLOAT, (4, 4)), TensorType(FLOAT, (9, 4, 4))
VARIABLES = {"v": Role.BUFFER, "w": Role.BUFFER}


def squares(*calls: Call, outputs: tuple[str, ...] = ()) -> Procedure:
    """Calls on square matrices, of which v and w are variables and x an input."""
    names = {n for c in calls for n in (*c.inputs, *c.outputs) if n} | {"x", "v", "w"}
    return procedure_of(calls, dict.fromkeys(sorted(names), SQUARE), VARIABLES, outputs=outputs)


def operators(procedure: Procedure) -> list[str]:
    return [c.op.rpartition(":")[2] for c in procedure.calls]


# ------------------------------------------------------------------------------------------------ copies


def test_a_product_is_written_to_the_variable_that_it_is_assigned_to() -> None:
    made = elide_copies(squares(call(":MatMul", "x,x", "a"), call("minbuild:Assign", "v,a", "")), registry())
    assert operators(made) == ["MatMul"] and made.alias == {"a": "v"}


@pytest.mark.parametrize("operands", ["v,x", "x,v", "v,v"])
def test_a_product_of_a_variable_is_not_written_over_it(operands: str) -> None:
    made = elide_copies(
        squares(call(":MatMul", operands, "a"), call("minbuild:Assign", "v,a", "")), registry()
    )
    assert operators(made) == ["MatMul", "Assign"] and not made.alias


def test_one_value_for_two_variables_is_copied_to_the_second() -> None:
    both = (call(":Relu", "x", "a"), call("minbuild:Assign", "v,a", ""), call("minbuild:Assign", "w,a", ""))
    made = elide_copies(squares(*both), registry())
    assert operators(made) == ["Relu", "Assign"] and made.calls[1].inputs[0] == "w"
    assert made.alias == {"a": "v"}


def test_an_input_is_copied_to_the_variable() -> None:
    made = elide_copies(squares(call("minbuild:Assign", "v,x", "")), registry())
    assert operators(made) == ["Assign"] and not made.alias


@pytest.mark.parametrize(("later", "alias"), [("x", {"a": "v", "b": "v"}), ("a", {"b": "v"})])
def test_what_is_read_again_does_not_lie_in_the_variable(later: str, alias: dict[str, str]) -> None:
    """b = relu(a) goes to v, and so does a, unless a later call needs it."""
    calls = (call(":MatMul", "x,x", "a"), call(":Relu", "a", "b"), call(":Relu", later, "c"))
    procedure = squares(*calls, call("minbuild:Assign", "v,b", ""), outputs=("c",))
    found = elide_copies(procedure, registry())
    assert operators(found) == ["MatMul", "Relu", "Relu"]
    effects = Effects(found, registry())
    assert {n: effects.owner(n) for n in "ab" if effects.owner(n) != n} == alias


def looped(*calls: Call) -> Procedure:
    """t = relu(x) for the whole batch, and these calls for each sample of it; y is another value of the batch."""
    whole, one = TensorType(FLOAT, (symbol("batch"), 4, 4)), TensorType(FLOAT, (1, 4, 4))
    types = {
        **dict.fromkeys(("x", "t", "y"), whole),
        **dict.fromkeys(("one t", "one y", "r"), one),
        "w": SQUARE,
    }
    made = procedure_of(
        (call(":Relu", "x", "t"), *calls),
        types,
        VARIABLES,
        alias={"one t": "t", "one y": "y"},
        loops=(range(1, 1 + len(calls)),),
        samples=symbol("batch"),
    )
    samples = {n: replace(made.values[n], sample=True) for n in ("one t", "one y")}
    return replace(made, values={**made.values, **samples})


@pytest.mark.parametrize(
    ("calls", "shared"),
    [
        ((call(":MatMul", "one t,w", "r"), call(":MatMul", "r,w", "one y")), True),
        ((call(":MatMul", "one t,w", "one y"),), False),  # reads its sample while it writes
        ((call(":MatMul", "one t,w", "r"), call(":MatMul", "r,one t", "one y")), False),
        ((call(":MatMul", "w,w", "one y"), call(":MatMul", "one t,w", "r")), False),  # reads it later
    ],
)
def test_a_loop_replaces_samples_that_it_has_read(calls: tuple[Call, ...], shared: bool) -> None:
    assert run_in_place(looped(*calls), registry()).alias.get("y") == ("t" if shared else None)


# ------------------------------------------------------------------------------------------- gradients, order


@pytest.mark.parametrize(
    ("maker", "expected"),
    [
        (call(":Relu", "x", "g"), ["Relu", "AddToGradient"]),  # its kernel only writes
        (call(":MatMul", "x,x", "g"), ["MatMul"]),
    ],
)
def test_only_kernels_that_add_make_gradients_in_their_buffers(maker: Call, expected: list[str]) -> None:
    accumulator = call(ACCUMULATOR, "w,g,", "done")
    made = fuse_gradient_accumulation(squares(maker, accumulator), registry())
    assert operators(made) == expected
    assert bool(made.calls[0].accumulate) == (made.alias == {"g": "w"}) == (len(expected) == 1)


def test_what_reads_a_variable_does_not_sink_behind_its_update() -> None:
    """Of the two wide results only the one that reads x can wait for its reader."""
    types = {
        **dict.fromkeys(("x", "v", "w", "a"), SQUARE),
        **dict.fromkeys(("of v", "of x", "y", "z"), WIDE),
        "size": TensorType(FLOAT, (3,)),
    }
    calls = (
        call(":Expand", "v,size", "of v"),
        call(":Expand", "x,size", "of x"),
        call("minbuild:Assign", "v,x", ""),
        call(":Relu", "of v", "y"),
        call(":Relu", "of x", "z"),
    )
    made = sink_code(
        procedure_of(calls, types, {**VARIABLES, "size": Role.INPUT}, outputs=("y", "z")), registry()
    )
    assert [made.calls.index(c) for c in calls] == [0, 3, 1, 2, 4]


# ------------------------------------------------------------------------------------------------- analyses


@pytest.mark.parametrize(
    ("positions", "found"),
    [
        (range(0, 2), False),
        (range(0, 3), True),
        (range(3, 5), False),
        (range(5, 6), True),
        (range(6, 9), False),
    ],
)
def test_positions_are_found_in_half_open_ranges(positions: range, found: bool) -> None:
    assert any_in((2, 5), positions) is found
    assert any_in((), positions) is False


def test_writes_are_positions_of_calls() -> None:
    procedure = squares(
        call(":MatMul", "x,v", "a"), call("minbuild:Assign", "v,a", ""), call(":Relu", "v", "b")
    )
    found = Writes(procedure, Effects(procedure, registry()))
    assert found.positions == {"a": [0], "v": [1], "b": [2]}
    assert found.any_in("v", range(1, 3)) and not found.any_in("v", range(2, 9))


@pytest.mark.parametrize(
    ("steps", "tiled", "live"),
    [
        ((2, 3), False, (2, 3)),  # made and read in one round
        ((2, 3), True, (1, 4)),  # sample by sample, through all rounds
        ((0, 3), False, (0, 4)),  # every round reads what was made before
        ((2, 5), False, (1, 5)),  # what the last round leaves is read behind
        ((0, 5), True, (0, 5)),
        ((5, 6), False, (5, 6)),
    ],
)
def test_what_outlives_a_round_lives_through_the_loop(
    steps: tuple[int, int], tiled: bool, live: tuple[int, int]
) -> None:
    accesses = [("t",) if step in steps else () for step in range(7)]
    assert live_ranges(accesses, ("t",) if tiled else (), (range(1, 5),)) == {"t": live}
