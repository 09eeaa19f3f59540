"""Slices of channels: applications that compute some channels of their images from the same channels of their inputs.

A tensor [1,C,...] has the elements of each channel in a row, and so have weights [C,...] of one filter per channel:
there a slice of channels is a range of bytes. Of several images [N,C,...], it is one range per image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from minbuild.ops.core.context import OpContext

PER_IMAGE, PER_CHANNEL = 1, 0  # the axis of channels: in images, and in parameters


@dataclass(frozen=True, slots=True)
class ChannelSlices:
    """An application in slices of its `channels`: inputs and outputs with channels, by number, and the axis that these
    are along. Other inputs are read whole. The `counts` are attributes that count channels."""

    channels: int
    inputs: Mapping[int, int]
    outputs: Mapping[int, int] = field(default_factory=lambda: {0: PER_IMAGE})
    counts: tuple[str, ...] = ()


ChannelRule = Callable[[OpContext], ChannelSlices | None]


def channels_of(ctx: OpContext, i: int = 0) -> int | None:
    """The channels of input `i`, where that has images with spatial axes."""
    shape = ctx.shape(i)
    return shape[1] if len(shape) > 2 and isinstance(shape[1], int) else None


def elementwise_channels(ctx: OpContext) -> ChannelSlices | None:
    """For operators whose elements depend on those of the inputs in the same place, which broadcast."""
    shape = ctx.result_shape()
    if len(shape) < 3 or not isinstance(shape[1], int):
        return None
    inputs = {}
    for i, tensor in enumerate(ctx.inputs):
        if tensor is None:
            continue
        own = tensor.shape or ()
        missing = len(shape) - len(own)
        leading, channels = ((1,) * missing + own)[:2]
        if leading not in (1, shape[0]) or channels not in (1, shape[1]):
            return None
        if channels != 1:
            inputs[i] = PER_IMAGE - missing
    return ChannelSlices(shape[1], inputs) if inputs else None
