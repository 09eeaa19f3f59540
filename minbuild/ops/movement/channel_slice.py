"""MoveChannels: a slice of the channels of every image, to or from its place among all. Loops over slices of channels
have it (passes/rewrite/slice_channels.py)."""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.ops.core.definition import (
    STORAGE_TYPES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    storage_type,
)

move_channels_kernel = KernelFunction(
    "move_channels", ("y:T=", "x:T", "number:int32"), types={"T": STORAGE_TYPES}
)
MOVE_CHANNELS = "minbuild:MoveChannels"


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    types = (storage_type(ctx.element()),)
    return (move_channels_kernel.call(ctx.result(), ctx.name(0), ctx.name(1), types=types),)


move_channels = Op("MoveChannels", domain="minbuild", lower=_lower, kernels=(move_channels_kernel,))

KERNELS = (move_channels_kernel,)
OPS = (move_channels,)
