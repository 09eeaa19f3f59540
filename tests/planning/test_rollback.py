"""Variables that are restored when a training step is refused: those written while it still may be."""

from __future__ import annotations

import pytest
from linear_model import FLOAT, INT64
from procedures import call, procedure_of

from minbuild.ir import Call, Program, Role, TensorType, Value
from minbuild.ops import registry
from minbuild.planning.rollback import changed_before_refusal

pytestmark = pytest.mark.unit

VARIABLES = tuple(Value(n, TensorType(FLOAT, (3,)), Role.BUFFER) for n in ("m1", "m2", "m3"))
PARAMETER = Value("w", TensorType(FLOAT, (3,)), Role.PARAMETER)
LOSS = (call(":Relu", "x", "a"), call("minbuild:Assign", "m1,a", ""), call(":ReduceSum", "a", "y"))
TWO, THREE = call("minbuild:Assign", "m2,a", ""), call("minbuild:Assign", "m3,a", "")


def restored(*calls: Call, name: str = "train") -> list[str]:
    """The names, for a procedure with these calls: x, w, a, variables and rows have three numbers, y is the loss."""
    types = dict.fromkeys(("x", "w", "a", "rows", *(v.name for v in VARIABLES)), TensorType(FLOAT, (3,)))
    types |= dict.fromkeys(("ids", "computed", "known"), TensorType(INT64, (3,)))
    types["y"] = TensorType(FLOAT, ())
    roles = {v.name: Role.BUFFER for v in VARIABLES} | {"w": Role.PARAMETER, "ids": Role.INPUT}
    procedure = procedure_of(calls, types, {**roles, "known": Role.CONSTANT}, name=name)
    return sorted(changed_before_refusal(Program((procedure,), (PARAMETER, *VARIABLES), 0, ()), registry()))


def test_what_is_written_behind_the_loss_is_not_restored() -> None:
    """The call right behind it is no longer among those that may be refused."""
    assert restored(*LOSS, TWO, THREE) == ["m1"]


def test_indices_behind_the_loss_may_still_be_refused() -> None:
    assert restored(*LOSS, TWO, call(":Gather", "w,ids", "rows"), THREE) == ["m1", "m2"]


def test_indices_are_refused_by_the_first_that_reads_them() -> None:
    first, again = call(":Gather", "w,ids", "rows"), call(":Gather", "a,ids", "rows")
    assert restored(*LOSS, TWO, first, THREE, again) == ["m1", "m2"]
    assert restored(first, *LOSS, TWO, again) == ["m1"]


def test_indices_that_are_computed_may_be_refused() -> None:
    computed = call(":ArgMax", "a", "computed")
    assert restored(computed, *LOSS, TWO, call(":Gather", "w,computed", "rows")) == ["m1", "m2"]


@pytest.mark.parametrize(
    "harmless",
    [call(":Gather", "w,known", "rows"), call(":Add", "ids,ids", "computed"), call(":Relu", "x", "rows")],
)
def test_what_no_kernel_checks_is_not_refused(harmless: Call) -> None:
    """Constants are in range, and sums take any numbers."""
    assert restored(*LOSS, TWO, harmless) == ["m1"]


def test_only_training_is_restored() -> None:
    assert restored(*LOSS, name="optimize") == []
