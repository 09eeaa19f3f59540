"""Slices of channels of convolutions and their gradients (`Op.channels`)."""

from __future__ import annotations

from minbuild.ir import Shape
from minbuild.ops.core.channel_slices import PER_CHANNEL, PER_IMAGE, ChannelSlices, channels_of
from minbuild.ops.core.definition import OpContext

_GROUPS = "group"


def channels_of_output(ctx: OpContext) -> ChannelSlices | None:
    """Each filter by itself: of all channels, or of its own."""
    x, w = ctx.shape(0), ctx.shape(1)
    filters = w[0] if channels_of(ctx) and isinstance(w[0], int) else None
    if filters is None:
        return None
    own = {1: PER_CHANNEL} | ({2: PER_CHANNEL} if ctx.has(2) else {})
    if int(ctx.attribute(_GROUPS, 1)) == 1:
        return ChannelSlices(filters, own)
    return ChannelSlices(filters, {0: PER_IMAGE, **own}, counts=(_GROUPS,)) if _single(ctx, x, w) else None


def channels_of_gradients(ctx: OpContext) -> ChannelSlices | None:
    """Where every channel has a filter of its own, whose gradient is one sum over the image."""
    channels = channels_of(ctx, 1)
    if channels is None or not _single(ctx, ctx.shape(1), ctx.shape(2)):
        return None
    inputs = {0: PER_IMAGE, 1: PER_IMAGE, 2: PER_CHANNEL}
    return ChannelSlices(channels, inputs, {0: PER_IMAGE, 1: PER_CHANNEL, 2: PER_CHANNEL}, counts=(_GROUPS,))


def _single(ctx: OpContext, x: Shape, w: Shape) -> bool:
    """True if the convolution of `x` with weights `w` has one filter per channel."""
    return int(ctx.attribute(_GROUPS, 1)) == x[1] == w[0] and w[1] == 1


OPS = ()
