"""Convolutions of real size with windows of 3 x 3 that move by one element, by Winograd's minimal filtering: their
kernel, the layers that take it, and its scratch memory.

The kernel is one of its own: libraries of models that are too small for it do not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.convolution.conv_params import (
    ARGS,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    multiplications,
)
from minbuild.ops.convolution.sliding_window import Axis
from minbuild.ops.core.definition import KernelFunction
from minbuild.ops.linear_algebra.gemm_packing import packed_bytes

# As in winograd_conv.cc and lib/nn/winograd.h.
_WHOLE_WINDOWS, _BLOCK_ELEMENTS, _COLUMNS, _APART = 1 << 14, 1 << 17, 32, 16
_SET, _SPREAD, _BEYOND, _LINE, _WINDOW = 1024, 80, 128, 16, 3
_LINES, _TILE = 4, 2
_LEAST = 32  # channels and filters, at least
# In multiplications and additions by vectors of 16, of which a packed convolution has 9 * outputs / 16 a window: what a
# transform takes of a tile of a channel, of a window, and of a gradient of one, as measured with AVX-512.
_OF_TILE, _OF_WINDOW, _OF_GRADIENT = 8, 13, 48
_MOST_TIME = (
    0.85  # of the packed convolution's; where the batch is free, no more than that at one image: others gain
)
_MOST_PADDED = 512  # outputs of an image up to which packed convolutions leave padding out (packed_conv.h)

winograd_kernel = KernelFunction(
    "winograd_conv_packed",
    ARGS,
    ("propagation:int", "pad_h:int", "pad_w:int", "share:int"),
    {"T": (ElementType.FLOAT,)},
    {
        "bias": "adds a number to every channel",
        "input_gradient": "input gradients",
        "weight_gradient": "weight gradients",
    },
    share=lambda params, first: params[-1] * ElementType.FLOAT.size,
    work=multiplications,
)


class Layer(Protocol):
    """A convolution as conv_layer.py describes it."""

    @property
    def element(self) -> ElementType: ...
    @property
    def channels(self) -> int: ...
    @property
    def filters(self) -> int: ...
    @property
    def axes(self) -> Sequence[Axis]: ...
    @property
    def batch(self) -> Dim: ...


def takes_winograd(layer: Layer, propagation: int) -> bool:
    """True of a layer that is faster by the kernel, at any batch if this is free. `propagation` says which of its
    tensors is computed."""
    axes, filters, channels = layer.axes, layer.filters, layer.channels
    if layer.element != ElementType.FLOAT or len(axes) != 2 or min(filters, channels) < _LEAST:
        return False
    if any((a.taps, a.stride, a.dilation) != (_WINDOW, 1, 1) or a.before >= _WINDOW for a in axes):
        return False
    sizes = [a.size if propagation == INPUT_GRADIENT else a.outputs for a in axes]
    if not all(isinstance(size, int) for size in sizes):
        return False
    images = layer.batch if isinstance(layer.batch, int) else 1
    tiles = _tiles(sizes) * images
    columns, per_window = -(-tiles // _COLUMNS) * _COLUMNS, _OF_WINDOW
    if propagation == WEIGHT_GRADIENT:
        columns, per_window = tiles, _OF_GRADIENT
    if filters * channels > _WHOLE_WINDOWS:
        per_window *= 2
    ours = columns + tiles * _OF_TILE * (1 / filters + 1 / channels) + per_window
    theirs = _WINDOW**2 * _number(product(sizes)) * images / 16
    if propagation != WEIGHT_GRADIENT and _number(product(sizes)) <= _MOST_PADDED:
        for a, size in zip(axes, sizes, strict=True):
            pads = _number(a.before + a.after)
            if propagation == INPUT_GRADIENT:
                pads = 2 * a.span - pads
            theirs *= 1 - pads / (_WINDOW * _number(size))
    return ours <= (_MOST_TIME if isinstance(layer.batch, int) else 1) * theirs


def winograd_features(propagation: int, *, bias: bool) -> tuple[str, ...]:
    """The features of a layer, with or without `bias`, where the kernel computes the tensor that `propagation` says."""
    asked = {
        "bias": bias,
        "input_gradient": propagation == INPUT_GRADIENT,
        "weight_gradient": propagation == WEIGHT_GRADIENT,
    }
    return tuple(name for name, used in asked.items() if used)


def winograd_scratch(layer: Layer, propagation: int) -> tuple[TensorType, int]:
    """Scratch memory for one thread of a layer that takes the kernel: windows, tiles of inputs and of outputs, all
    transformed, and packed blocks of their products. Also the elements of it that each thread has. `propagation`
    says which of the layer's tensors is computed."""
    filters, channels = layer.filters, layer.channels
    if propagation == INPUT_GRADIENT:
        filters, channels = channels, filters
    sizes = [a.size if propagation == INPUT_GRADIENT else a.outputs for a in layer.axes]
    lines = _LINES * (_LINES if filters * channels <= _WHOLE_WINDOWS else 1)
    most = max(_BLOCK_ELEMENTS // (lines * (filters + channels)) // _COLUMNS * _COLUMNS, _COLUMNS)
    if isinstance(layer.batch, int):
        most = min(most, -(-_tiles(sizes) * layer.batch // _COLUMNS) * _COLUMNS)
    weighs = propagation == WEIGHT_GRADIENT
    packed = packed_bytes(
        ElementType.FLOAT, *((filters, channels, most) if weighs else (filters, most, channels))
    )
    pitch = most + _APART
    windows, tiles = (
        lines * _apart(filters * channels),
        lines * (_apart(channels * pitch) + _apart(filters * pitch)),
    )
    share = packed // ElementType.FLOAT.size + _BEYOND + (0 if weighs else tiles)
    elements = windows + (tiles if weighs else 0) + share + 2 * _LINE
    return TensorType(ElementType.UINT8, (elements * ElementType.FLOAT.size,)), share


def _apart(elements: int) -> int:
    return -(-elements // _SET) * _SET + _SPREAD


def _number(dim: Dim) -> int:
    assert isinstance(dim, int)
    return dim


def _tiles(sizes: Sequence[Dim]) -> int:
    down, across = (-(-_number(size) // _TILE) for size in sizes)
    return down * across


OPS: tuple[()] = ()
KERNELS = (winograd_kernel,)
