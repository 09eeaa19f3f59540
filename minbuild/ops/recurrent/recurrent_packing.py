"""Recurrent layers that are large enough for packed products (kernels/lib/nn/packed_recurrent.h): their kernels, which
are of their own, and the scratch memory that packing takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from minbuild.ir import Shape
from minbuild.ir.dims import product
from minbuild.ops.core.definition import KernelFunction, OpContext
from minbuild.ops.linear_algebra.gemm_packing import PACKED_BYTES, packing_scratch
from minbuild.ops.recurrent import recurrent as rec

# As in packed_recurrent.h: sequences, bytes of weights, and elements between their rows.
_LEAST_TURNED, _MOST_TURNED, _BETWEEN = 5, 1 << 22, 16


def packed_kernel_of(kernel: KernelFunction) -> KernelFunction:
    """The kernel of a layer of real size, beside that of any."""
    return KernelFunction(
        f"{kernel.function}_packed",
        kernel.args,
        kernel.params,
        kernel.types,
        {**kernel.features, "directions": "large layers backwards in time, or both ways"},
        share=lambda params, first: PACKED_BYTES + 64,
        work=kernel.work,
    )


def packing_of(
    ctx: OpContext, kernel: KernelFunction, sizes: rec.Sizes, r: int, *, turns: bool = False
) -> tuple[Shape, ...]:
    """Scratch memory for packed products where the recurrent weights, input `r`, are large enough, or nothing: then
    `kernel` computes the layer. `ctx` is the operator's, `sizes` are its own; the kernel `turns` the weights."""
    element, weights = ctx.element(), ctx.shape(r)[1:]
    if not packing_scratch(ctx, kernel, sizes.batch, *weights):
        return ()
    few = isinstance(sizes.batch, int) and sizes.batch < _LEAST_TURNED
    turned = (product((sizes.gates, sizes.hidden)) + _BETWEEN) * sizes.hidden
    fits = isinstance(turned, int) and turned * element.size <= _MOST_TURNED
    return ((PACKED_BYTES // element.size,), *(((turned,),) if turns and fits and not few else ()))


def features_of(ctx: OpContext, packing: tuple[Shape, ...]) -> tuple[str, ...]:
    """The features of a packed kernel alone that a layer needs, which is packed unless `packing` is empty."""
    turns = packing and ctx.attribute("direction", "forward") != "forward"
    return ("directions",) if turns else ()


def large_layers(
    random: np.random.Generator, gates: int
) -> Iterable[tuple[str, tuple[np.ndarray | None, ...], dict[str, Any]]]:
    """Test cases of a size that is packed, of layers with a number of `gates`: name, inputs x, w, r, b, lengths and h0,
    attributes. `random` draws them."""
    hidden = 190

    def layer(batch: int, directions: int) -> Iterable[np.ndarray]:
        weights = ((directions, gates * hidden, 7), (directions, gates * hidden, hidden))
        shapes = ((3, batch, 7), *weights, (directions, 2 * gates * hidden), (directions, batch, hidden))
        return (random.standard_normal(shape) * 0.2 for shape in shapes)

    x, w, r, b, h0 = layer(2, 1)
    attributes = {"hidden_size": hidden}
    yield "packed", (x, w, r, None, None, None), attributes
    yield "packed states", (x, w, r, b, None, h0), attributes
    yield "packed lengths", (x, w, r, b, np.array([3, 2], np.int32), h0), attributes
    yield "packed reverse", (x, w, r, b, None, h0), {**attributes, "direction": "reverse"}
    for batch in (2, 5):
        x, w, r, b, h0 = layer(batch, 2)
        given = {**attributes, "direction": "bidirectional"}
        yield f"packed both ways {batch}", (x, w, r, b, None, h0 if batch > 2 else None), given


OPS: tuple[()] = ()
