"""Products that the kernel of Contraction computes in place of those of Gemm and Conv, for libraries that have it
anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from minbuild.ir import Shape, TensorType
from minbuild.ir.dims import product
from minbuild.ops.arithmetic.arithmetic import add_kernel
from minbuild.ops.convolution.conv import conv_kernel
from minbuild.ops.convolution.conv_params import INPUT_GRADIENT, OUTPUT
from minbuild.ops.core.broadcasting import broadcast_loop_of
from minbuild.ops.core.definition import FLOAT, EqualLowering, KernelCall, KernelFunction
from minbuild.ops.linear_algebra.contraction import contraction_kernel, order_of
from minbuild.ops.linear_algebra.contraction import packed_kernel as packed_contraction
from minbuild.ops.linear_algebra.gemm import gemm_kernel
from minbuild.ops.linear_algebra.gemm import packed_kernel as packed_gemm
from minbuild.ops.movement.expand import expand_kernel, factor_words

_ROWS, _COLUMNS, _DEPTH = range(3)  # axes of a product of two matrices


def _real(word: int) -> float:
    """The float32 that a parameter has the bits of."""
    return float(np.array(word, np.int32).view(np.float32))


def _gemm(call: KernelCall, shape: Callable[[str], Shape]) -> Sequence[KernelCall] | None:
    """The product of the same matrices, then the third operand added to it, as Gemm adds it behind its product."""
    y, a, b, c, *room = call.args
    assert isinstance(y, str) and isinstance(a, str) and isinstance(c, str)
    trans_a, trans_b = (bool(word) for word in call.params[:2])
    alpha, beta = (_real(word) for word in call.params[2:])
    if c and (beta != 1 or call.accumulate):
        return None
    depth = shape(a)[0 if trans_a else 1]
    kernel = packed_contraction if call.kernel is packed_gemm else contraction_kernel
    orders = (
        (_ROWS, _COLUMNS),
        (_DEPTH, _ROWS) if trans_a else (_ROWS, _DEPTH),
        (_COLUMNS, _DEPTH) if trans_b else (_DEPTH, _COLUMNS),
    )
    products = kernel.call(
        *(y, a, b, "", TensorType(FLOAT, shape(y)), TensorType(FLOAT, (depth,)), *room),
        types=call.types,
        params=(*map(order_of, orders), alpha),
        accumulate=call.accumulate,
    )
    if not c:
        return (products,)
    loop = broadcast_loop_of(shape(y), shape(y), shape(c))
    added = add_kernel.call(
        *(y, y, c, loop.extent), types=call.types, params=loop.axes, features=loop.features
    )
    return products, added


def _pointwise(call: KernelCall, shape: Callable[[str], Shape]) -> tuple[Shape, Shape] | None:
    """The shapes of x and w of a convolution without groups whose windows are single elements side by side; None for
    others."""
    out, first, second = (shape(str(name)) for name in call.args[:3])
    propagation, groups, *window = call.params
    x, w = (first, second) if propagation == OUTPUT else (out, second)
    y = out if propagation == OUTPUT else first
    if propagation not in (OUTPUT, INPUT_GRADIENT):
        x, w, y = first, out, second
    plain = groups == 1 and window[:6] == [1, 1, 1, 0, 0, 0] and all(d == 1 for d in w[2:])
    return (x, w) if plain and x[2:] == y[2:] else None


def _conv(call: KernelCall, shape: Callable[[str], Shape]) -> Sequence[KernelCall] | None:
    """The product of each image's channels with the filters. A bias is there before it, as in convolutions."""
    found = _pointwise(call, shape)
    if found is None:
        return None
    x, w = found
    images, channels, filters, plane = x[0], x[1], w[0], product(x[2:])
    out, first, second, bias, _ = call.args
    start: tuple[KernelCall, ...] = ()
    outer: Shape
    inner: Shape
    axes: tuple[Sequence[int], ...]
    if call.params[0] == OUTPUT:
        outer, inner = (images, filters, plane), (channels,)
        axes, names = ((0, 1, 2), (1, 3), (0, 3, 2)), (second, first)
        if bias and plane != 1:
            start = (_expanded(call, outer),)
            bias = out
    elif call.params[0] == INPUT_GRADIENT:
        outer, inner = (images, channels, plane), (filters,)
        axes, names = ((0, 1, 2), (3, 1), (0, 3, 2)), (second, first)
    else:  # rows are channels, and columns filters
        outer, inner = (channels, filters), (images, plane)
        axes, names = ((1, 0), (2, 0, 3), (2, 1, 3)), (first, second)
    products = contraction_kernel.call(
        *(out, *names, bias, TensorType(FLOAT, outer), TensorType(FLOAT, inner)),
        types=call.types,
        params=(*map(order_of, axes), 1.0),
        features=("bias",) if bias else (),
        accumulate=call.accumulate,
    )
    return *start, products


def _expanded(call: KernelCall, sizes: Shape) -> KernelCall:
    """The bias of a convolution in all elements of its outputs, which have these `sizes`."""
    loop = broadcast_loop_of(sizes, (sizes[1], 1), ())
    return expand_kernel.call(
        *(call.args[0], call.args[3], None, loop.extent),
        types=call.types,
        params=(*loop.axes, *factor_words(1, call.types[0]), 0),
        features=("broadcast",) if loop.axes_count > 2 else (),
    )


_CONTRACTIONS: tuple[KernelFunction, ...] = (contraction_kernel, packed_contraction)
OPS = ()
EQUALS = (
    EqualLowering(
        "gemm-by-contraction",
        "Gemm by the kernel of MatMul",
        {kernel.function: _gemm for kernel in (gemm_kernel, packed_gemm)},
        (*_CONTRACTIONS, add_kernel),
        needs=frozenset({contraction_kernel.function}),
    ),
    EqualLowering(
        "convolution-by-contraction",
        "Convolution of single elements by the kernel of MatMul",
        {conv_kernel.function: _conv},
        (contraction_kernel, expand_kernel),
    ),
)
