"""SetRounds and SkipRound: the number of rounds of the loops behind it, and the end of a round that is none of its
loop any more. The session acts on their statuses; loop expansion makes them (passes/rewrite/expand_loops.py)."""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.ir import ElementType, TensorType
from minbuild.ops.core.definition import KernelCall, KernelFunction, Op, OpContext

# `running` is not changed. As an output it keeps the call before what the round computes.
set_rounds_kernel = KernelFunction("set_rounds", ("y:T=", "rounds:extent"), types={"T": (ElementType.INT32,)})
skip_round_kernel = KernelFunction("skip_round", ("running:T=",), types={"T": (ElementType.UINT8,)})
KERNELS = (set_rounds_kernel, skip_round_kernel)
SET_ROUNDS, SKIP_ROUND = "minbuild:SetRounds", "minbuild:SkipRound"


def _lower_rounds(ctx: OpContext) -> Sequence[KernelCall]:
    rounds = TensorType(ElementType.FLOAT, (ctx.attributes["rounds"],))
    return (set_rounds_kernel.call(ctx.result(), rounds, types=(ElementType.INT32,)),)


def _lower_skip(ctx: OpContext) -> Sequence[KernelCall]:
    return (skip_round_kernel.call(ctx.name(0), types=(ElementType.UINT8,)),)


set_rounds = Op("SetRounds", domain="minbuild", lower=_lower_rounds, kernels=(set_rounds_kernel,))
skip_round = Op(
    "SkipRound", domain="minbuild", lower=_lower_skip, kernels=(skip_round_kernel,), mutates={0: None}
)

OPS = (set_rounds, skip_round)
