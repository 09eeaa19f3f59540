"""Convolutions of real size with windows of 3 x 3 that move by one element, by Winograd's minimal filtering: their
kernel, the layers that take it, and its scratch memory.

The kernel is one of its own: libraries of models that are too small for it do not have it.
"""

from __future__ import annotations

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import product
from minbuild.ops.convolution.conv_layer import MOST_PADDED, Layer
from minbuild.ops.convolution.conv_params import (
    ARGS,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    multiplications,
)
from minbuild.ops.convolution.sliding_window import known
from minbuild.ops.core.definition import KernelFunction
from minbuild.ops.linear_algebra.gemm_packing import packed_bytes

# As in winograd_conv.cc and lib/nn/winograd.h.
_WHOLE_WINDOWS, _BLOCK_ELEMENTS, _COLUMNS, _APART = 1 << 14, 1 << 17, 32, 16
_SET, _SPREAD, _BEYOND, _LINE, _WINDOW = 1024, 80, 128, 16, 3
_LINES, _TILE = 4, 2
_LEAST = 32  # channels and filters, at least
# In multiplications and additions by vectors of 16, of which a packed convolution has 9 * outputs / 16 a window: what a
# transform takes of a tile of a channel, of a window, and of a gradient of one, as measured with AVX-512. Vectors take
# tiles of one row.
_OF_TILE, _OF_WINDOW, _OF_GRADIENT, _LANES = 8, 13, 75, 16
# Filters times channels beyond which transformed windows, of 64 bytes each, are farther from the processor, so that one
# takes twice as long; a gradient does half as long again beyond the first.
_FAR = (_WHOLE_WINDOWS, 1 << 15, 1 << 17)
# Images of a batch that is free: with one more layers are faster without, with eight far fewer.
_IMAGES = 2
# Of the packed convolution's; where the batch is free, no more than that at so few images, as others gain.
_MOST_TIME = 0.95

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


def takes_winograd(layer: Layer, propagation: int) -> bool:
    """True of a layer that is faster by the kernel, at two images if the batch is free, and that may have its scratch
    memory. `propagation` says which of the layer's tensors is computed."""
    has, parts = layer.kernels.has, winograd_features(propagation, bias=False)
    if not has(winograd_kernel.function) or not all(has(f"winograd_conv.{part}") for part in parts):
        return False
    if not layer.packs or layer.groups > 1 or len(layer.axes) != 2 or layer.element != ElementType.FLOAT:
        return False
    if min(layer.filters, layer.channels) < _LEAST:
        return False
    if any((a.taps, a.stride, a.dilation) != (_WINDOW, 1, 1) or a.before >= _WINDOW for a in layer.axes):
        return False
    made = _made(layer, propagation)
    if not all(isinstance(a.outputs, int) for a in made.axes) or not _pays(made, propagation):
        return False
    return layer.may_have(winograd_scratch(layer, propagation)[0], propagation)


def _made(layer: Layer, propagation: int) -> Layer:
    """The convolution whose outputs, or gradients of weights, the kernel computes."""
    return layer.exchanged() if propagation == INPUT_GRADIENT else layer


def _pays(made: Layer, propagation: int) -> bool:
    filters, channels = made.filters, made.channels
    images = made.batch if isinstance(made.batch, int) else _IMAGES
    down, across = _grid(made)
    tiles, outputs = down * across * images, known(product([a.outputs for a in made.axes]))
    per_tile = _OF_TILE * -(-across // _LANES) * _LANES / across
    farness = sum(filters * channels > far for far in _FAR)
    if propagation == WEIGHT_GRADIENT:
        columns, per_window = tiles, _OF_GRADIENT * (1.5 if farness else 1)
    else:
        columns, per_window = -(-tiles // _COLUMNS) * _COLUMNS, _OF_WINDOW * 2**farness
    ours = columns + tiles * per_tile * (1 / filters + 1 / channels) + per_window
    theirs = _WINDOW**2 * outputs * images / 16
    if propagation != WEIGHT_GRADIENT and outputs <= MOST_PADDED:  # packed, they leave padding out
        for a in made.axes:
            theirs *= 1 - known(a.before + a.after) / (_WINDOW * known(a.outputs))
    return ours <= (_MOST_TIME if isinstance(made.batch, int) else 1) * theirs


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
    made, weighs = _made(layer, propagation), propagation == WEIGHT_GRADIENT
    filters, channels = made.filters, made.channels
    lines = _LINES * (_LINES if filters * channels <= _WHOLE_WINDOWS else 1)
    of_block = _LINES if weighs else lines
    most = max(_BLOCK_ELEMENTS // (of_block * (filters + channels)) // _COLUMNS * _COLUMNS, _COLUMNS)
    if isinstance(layer.batch, int):
        down, across = _grid(made)
        most = min(most, -(-down * across * layer.batch // _COLUMNS) * _COLUMNS)
    sizes = (filters, channels, most) if weighs else (filters, most, channels)
    packed, pitch = packed_bytes(ElementType.FLOAT, *sizes), most + _APART
    tiles = of_block * (_apart(channels * pitch) + _apart(filters * pitch))
    share = packed // ElementType.FLOAT.size + _BEYOND + tiles
    elements = lines * _apart(filters * channels) + share + 2 * _LINE
    return TensorType(ElementType.UINT8, (elements * ElementType.FLOAT.size,)), share


def _apart(elements: int) -> int:
    return -(-elements // _SET) * _SET + _SPREAD


def _grid(made: Layer) -> tuple[int, int]:
    """Tiles of an image, down and across."""
    down, across = (-(-known(a.outputs) // _TILE) for a in made.axes)
    return down, across


OPS: tuple[()] = ()
KERNELS = (winograd_kernel,)
