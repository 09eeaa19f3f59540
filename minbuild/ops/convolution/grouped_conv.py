"""Convolutions of real size with few channels per group: their kernel, the layers that take it, and its scratch memory.

The kernel is one of its own: libraries of models that are too small for it do not have it.
"""

from __future__ import annotations

from math import prod

from minbuild.ir import ElementType, TensorType
from minbuild.ops.convolution.conv_layer import Layer
from minbuild.ops.convolution.conv_params import (
    ARGS,
    INPUT_GRADIENT,
    PARAMS,
    images_of_pass,
    multiplications,
)
from minbuild.ops.convolution.sliding_window import Axis, known
from minbuild.ops.core.definition import FLOATS, KernelFunction

# As in lib/nn/grouped_planes.h.
_MOST_TAPS, _MOST_SIZE, _MOST_GAP, _SLACK, _WHOLE = 64, 1 << 13, 1 << 7, 64, 16
_LEAST_WORK = 3 << 17  # multiplications per image
_MOST_CHANNELS = 64  # of a group, or filters

grouped_kernel = KernelFunction(
    "grouped_conv_packed",
    ARGS,
    PARAMS,
    {"T": FLOATS},
    {"strides": "windows that move by two elements"},
    share=lambda params, first: first,
    work=multiplications,
)


def takes_grouped(layer: Layer, propagation: int) -> bool:
    """True of a layer that the kernel is made for and that may have its scratch memory. `propagation` says which of the
    layer's tensors is computed."""
    has, window = layer.kernels.has, layer.axes
    if not layer.kernels.packs or not has(grouped_kernel.function):
        return False
    if layer.groups == 1 or len(window) != 2 or layer.taps == 1 or layer.taps > _MOST_TAPS:
        return False
    if max(layer.channels, layer.filters) > _MOST_CHANNELS or len({a.stride for a in window}) > 1:
        return False
    if window[0].stride > 2 or (window[0].stride == 2 and not has("grouped_conv.strides")):
        return False
    if not all(isinstance(a.size, int) and isinstance(a.outputs, int) for a in window):
        return False
    if any(known(a.size) > _MOST_SIZE or a.before > a.span or a.dilation > _MOST_GAP for a in window):
        return False
    outputs = prod(known(a.outputs) for a in window)
    if layer.groups * layer.channels * layer.filters * layer.taps * outputs < _LEAST_WORK:
        return False
    return layer.may_have(grouped_scratch(layer, propagation), propagation)


def grouped_features(layer: Layer) -> tuple[str, ...]:
    """The features of the kernel that `layer` needs."""
    return ("strides",) * layer.strided


def grouped_scratch(layer: Layer, propagation: int) -> TensorType:
    """For one thread: planes of the channels of a group that are read, in the images of a pass, and those that are
    computed on the same grid. `propagation` says which of the layer's tensors is computed."""
    stride, back = layer.axes[0].stride, propagation == INPUT_GRADIENT
    images = images_of_pass(prod(known(a.outputs) for a in layer.axes))
    if isinstance(layer.batch, int):
        passes = max(1, -(-layer.batch // images))
        images = max(1, -(-layer.batch // passes))
    lengths, befores = zip(*(_extent(a, back) for a in layer.axes), strict=True)
    plane = prod(lengths)
    sources, results = layer.channels, layer.filters
    side = -(-images * plane // _WHOLE) * _WHOLE
    if back:
        sources, results, side = results, sources, side * stride
    phases = 1 if back else stride**2
    step = phases * images * plane + befores[0] * images * lengths[1] + befores[1]
    elements = sources * step + results * side + 2 * _SLACK
    whole = -(-elements // _WHOLE) * _WHOLE
    return TensorType(ElementType.UINT8, (whole * layer.element.size,))


def _extent(a: Axis, back: bool) -> tuple[int, int]:
    """Elements of a plane along an axis, and of its padding in front: of the input, or of the outputs, from which
    gradients of the input are computed phase by phase, if `back`."""
    read, before, end = known(a.size), a.before, known(a.outputs) + a.span - a.before
    if back:
        firsts = [max(0, -(-(a.before - r) // a.stride)) for r in range(a.stride)]
        taps = [t * a.dilation for t in range(a.taps)]
        read, before = known(a.outputs), max(0, *(t // a.stride - firsts[t % a.stride] for t in taps))
        end = max(-(-(known(a.size) + a.before - r) // a.stride) for r in range(a.stride))
    elif a.stride > 1:
        return known(a.outputs) + a.span // a.stride, before
    return read + max(before, end - read), before


OPS: tuple[()] = ()
KERNELS = (grouped_kernel,)
