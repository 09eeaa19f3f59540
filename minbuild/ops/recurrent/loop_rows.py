"""NextRows and MoveRow: rows of stacks whose place changes from round to round, for loops that keep some states and
compute the others again. The pass passes/rewrite/checkpoint_loops.py makes them."""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.ir import Call, ElementType, TensorType
from minbuild.ops.core.definition import (
    STORAGE_TYPES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    storage_type,
)

next_rows_kernel = KernelFunction(
    "next_rows", ("places:int32=", "rounds:extent"), params=("every:int", "again:int")
)
move_row_kernel = KernelFunction(
    "move_row", ("y:T=", "x:T", "places:int32"), params=("place:int",), types={"T": STORAGE_TYPES}
)
KERNELS = (next_rows_kernel, move_row_kernel)
NEXT_ROWS, MOVE_ROW = "minbuild:NextRows", "minbuild:MoveRow"
# Elements of `places`, as loop_rows.cc has them: the number of the next round, then rows, negative for none.
NEXT, CHECKPOINT, RECENT, AGAIN_FORWARD, AGAIN_BACKWARD, PLACES = range(6)


def _lower_next(ctx: OpContext) -> Sequence[KernelCall]:
    rounds = TensorType(ElementType.FLOAT, (ctx.attributes["rounds"],))
    params = (ctx.attributes["every"], ctx.attributes["again"])
    return (next_rows_kernel.call(ctx.result(), rounds, params=params),)


def _lower_move(ctx: OpContext) -> Sequence[KernelCall]:
    types, params = (storage_type(ctx.element()),), (ctx.attributes["place"],)
    return (move_row_kernel.call(ctx.result(), ctx.name(0), ctx.name(1), types=types, params=params),)


def reads_again(call: Call) -> bool:
    """True if `call` moves a row out of a stack of all rounds: that of a round before the one that runs."""
    return call.op == MOVE_ROW and call.attributes["place"] in (AGAIN_FORWARD, AGAIN_BACKWARD)


next_rows = Op("NextRows", domain="minbuild", lower=_lower_next, kernels=(next_rows_kernel,))
move_row = Op("MoveRow", domain="minbuild", lower=_lower_move, kernels=(move_row_kernel,))

OPS = (next_rows, move_row)
