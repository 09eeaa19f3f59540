"""Sixteen-bit numbers between operators that compute in float."""

from __future__ import annotations

import pytest
from procedures import call, procedure_of

from minbuild.ir import ElementType, TensorType
from minbuild.ops import registry
from minbuild.passes.rewrite.dead_code import drop_dead_code
from minbuild.passes.rewrite.legalize_half import legalize_half_precision

pytestmark = pytest.mark.unit

FLOAT, HALF = ElementType.FLOAT, ElementType.FLOAT16
SQUARE = TensorType(HALF, (4, 4))


def legal(*calls, **types):
    values = {n: SQUARE for each in calls for n in (*each.inputs, *each.outputs)} | types
    made = legalize_half_precision(procedure_of(calls, values), registry())
    return drop_dead_code(made, registry()).calls


def test_no_value_is_rounded_between_operators_that_compute_in_float() -> None:
    """Through a movement too, which has a kernel for halves: the output alone is rounded."""
    calls = legal(
        call(":Gemm", "x,x", "a"), call(":Transpose", "a", "t", perm=(1, 0)), call(":Gemm", "t,x", "y")
    )
    assert [c.op for c in calls] == [":Cast", ":Gemm", ":Transpose", ":Gemm", ":Cast"]
    assert calls[-1].outputs == ("y",) and calls[-1].attributes["to"] == HALF


def test_a_cast_of_the_graph_itself_rounds() -> None:
    """And reads what was computed, not what it was rounded to."""
    real = TensorType(FLOAT, (4, 4))
    calls = legal(
        call(":Gemm", "x,x", "a"), call(":Cast", "a", "y", to=int(ElementType.BFLOAT16)),
        y=TensorType(ElementType.BFLOAT16, (4, 4)),
    )  # fmt: skip
    assert [c.op for c in calls] == [":Cast", ":Gemm", ":Cast"]
    assert calls[-1].inputs == calls[-2].outputs and calls[-1].attributes["to"] == ElementType.BFLOAT16
    widened = legal(call(":Gemm", "x,x", "a"), call(":Cast", "a", "y", to=int(FLOAT)), y=real)
    assert widened[-1].inputs == widened[-2].outputs and widened[-1].outputs == ("y",)


def test_movements_of_halves_that_nobody_computed_stay_as_they_are() -> None:
    assert [c.op for c in legal(call(":Transpose", "x", "y", perm=(1, 0)))] == [":Transpose"]
