"""Convolutions of real size with one filter per channel: their kernel, the layers that take it, and its scratch memory.

The kernel is one of its own: libraries of models that are too small for it do not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from minbuild.ir import ElementType, TensorType
from minbuild.ops.convolution.conv_params import (
    ARGS,
    INPUT_GRADIENT,
    PARAMS,
    WEIGHT_GRADIENT,
    multiplications,
)
from minbuild.ops.convolution.sliding_window import Axis, known
from minbuild.ops.core.definition import FLOATS, KernelFunction

# As in depthwise_conv.cc.
_MOST_TAPS, _MOST_SIZE, _SLACK_BYTES, _LANES, _NARROW = 64, 1 << 13, 128, 16, 8
_MOST_OF_COPIES, _ONE_VECTOR = 2048, 8
_LEAST_WORK = 3 << 17  # multiplications per image
depthwise_kernel = KernelFunction(
    "depthwise_conv",
    ARGS,
    PARAMS,
    {"T": FLOATS},
    {
        "narrow": "windows of 3 x 3 over images of five to eight columns",
        "five_rows": "outputs and input gradients of windows with five rows",
        "seven_rows": "outputs and input gradients of windows with seven rows",
        "tall_strides": "those of such windows that move by two elements",
    },
    hints=frozenset({"narrow", "five_rows", "seven_rows", "tall_strides"}),
    share=lambda params, first: first,
    work=multiplications,
)


def takes_depthwise(axes: Sequence[Axis], channels: int) -> bool:
    """True of a window over `channels` channels, each with a filter of its own, that the kernel is made for."""
    if len(axes) != 2 or len({a.stride for a in axes}) != 1 or axes[0].stride > 2:
        return False
    if not all(isinstance(a.size, int) and isinstance(a.outputs, int) for a in axes):
        return False
    if any(a.dilation != 1 or a.before >= a.taps or known(a.size) > _MOST_SIZE for a in axes):
        return False
    taps = prod(a.taps for a in axes)
    return taps <= _MOST_TAPS and channels * taps * prod(known(a.outputs) for a in axes) >= _LEAST_WORK


def is_narrow(axes: Sequence[Axis]) -> bool:
    """True where the kernel reads images as they are: a window of 3 x 3 that keeps their size, rows of one vector."""
    kept = all((a.taps, a.stride, a.before, a.size) == (3, 1, 1, a.outputs) for a in axes)
    return kept and _NARROW < 2 * known(axes[1].size) <= 2 * _NARROW


def is_tall(axes: Sequence[Axis], propagation: int) -> bool:
    """True where the kernel computes columns of the window one after the other. `axes` are those of the window,
    `propagation` says which tensor is computed."""
    return propagation != WEIGHT_GRADIENT and axes[0].taps in (5, 7)


def depthwise_features(axes: Sequence[Axis], propagation: int) -> tuple[str, ...]:
    """The features of the kernel that a layer needs, as is_tall has it."""
    asked = {"narrow": is_narrow(axes)}
    if is_tall(axes, propagation):
        asked |= {
            "five_rows": axes[0].taps == 5,
            "seven_rows": axes[0].taps == 7,
            "tall_strides": axes[0].stride > 1,
        }
    return tuple(name for name, used in asked.items() if used)


def depthwise_scratch(axes: Sequence[Axis], element: ElementType, propagation: int) -> TensorType:
    """Planes of a channel, and for gradients of weights its outputs in such rows. `axes` are those of the
    window, `element` is the type of the tensors, `propagation` says which of them is computed."""
    slack, phases, lengths = _SLACK_BYTES // element.size, 1, []
    for a in axes:
        size, outputs = known(a.size), known(a.outputs)
        if propagation != INPUT_GRADIENT:
            lengths.append(outputs + a.span // a.stride)
        elif a.stride == 1:
            lengths.append(size + a.span)
        else:
            lengths.append(max(outputs, (size - 1 + a.before) // 2 + 1) + a.span // 2)
        phases *= 1 if propagation == INPUT_GRADIENT else a.stride
    elements = prod(lengths) * phases + slack
    if is_tall(axes, propagation) and elements <= _MOST_OF_COPIES:
        last, back = axes[1], propagation == INPUT_GRADIENT
        width = -(-known(last.size) // last.stride) if back else known(last.outputs)
        elements *= 4 if width <= _ONE_VECTOR else 2
    if propagation == WEIGHT_GRADIENT:  # in rows as long as those of a plane
        elements += (known(axes[0].outputs) - 1) * lengths[1] + known(axes[1].outputs) + _LANES
    whole = -(-(elements + slack) // _LANES) * _LANES
    return TensorType(ElementType.UINT8, (whole * element.size,))


OPS: tuple[()] = ()
KERNELS = (depthwise_kernel,)
