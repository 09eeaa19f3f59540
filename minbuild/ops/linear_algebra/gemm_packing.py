"""Which products are large enough to be packed (kernels/lib/gemm/packed_blocks.h), and the scratch memory that takes.

The kernel of packed products is one of its own: libraries of models that are too small for it do not have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Dim, evaluate, never_negative, symbols_in
from minbuild.ops.core.definition import FLOATS, KernelFunction, OpContext, whole_share

# As in block_sizes.h; the wide ones are of products of matrices in memory with many rows.
_ROW_BYTES, _COLUMN_BYTES, _BEYOND_ROWS = 17 << 13, 1 << 19, 32
_WIDE_COLUMN_BYTES, _WIDE_ROWS = 17 << 16, 512
PACKED_BYTES = _ROW_BYTES + _COLUMN_BYTES  # enough for any other product
_DEEPEST, _DEEP = 1024, 256  # the depth of a block on any target, at most, and with wide vectors
_WIDEST = 256  # bytes of a row of a panel, at most
_TALLEST = 8  # rows of a tile, at most

QUANTIZED_COLUMN_BYTES = _COLUMN_BYTES // 2  # as in quantized_product.h

# Gains were measured from here on, by 1.2 times and more.
_LONG, LARGE_MATRIX = 160, 1 << 15  # the two longest sizes: a layer's weights
MEDIUM, LARGE_PRODUCT = 48, 1 << 20  # all three sizes: attention
_LOW_RANK, _MANY_ROWS = 4, 96  # the least size and the next: adapters of layers, over any number of rows
_LOW_RANK_PRODUCT = 1 << 19  # all three sizes of those
_HEAD = 32  # the depth of products whose other sizes are free
_SAMPLES = 8  # of a batch that is free
_LARGE_OUTER = 1 << 20  # bytes of an outer product whose time is that of writing it


def packed_kernel_of(kernel: KernelFunction) -> KernelFunction:
    """The kernel of the same product, packed."""
    args = (*kernel.args, "room:scratch")
    return KernelFunction(
        f"{kernel.function}_packed",
        args,
        kernel.params,
        {"T": FLOATS},
        kernel.features,
        hints=kernel.hints,
        share=whole_share,
        work=kernel.work,
    )


def packing_scratch(
    ctx: OpContext,
    kernel: KernelFunction,
    *sizes: Dim,
    packed: str = "",
    column_bytes: int = 0,
) -> tuple[TensorType, ...]:
    """The scratch memory of a product of `sizes`, rows, columns and depth, in the type of the operator of `ctx`, or
    nothing where `kernel` computes it as it is, as packing does not pay or `ctx` is without it. Free sizes count as
    large; `packed` is the function, or the feature, that packs, by default the function of `packed_kernel_of`;
    `column_bytes` are the most for columns, by default as many as a product of matrices in memory takes."""
    element, known = ctx.element(), [d for d in sizes if isinstance(d, int)]
    pays = _pays(known) or _pays_at_least(sizes, ctx.kernels.largest or {})
    if element not in FLOATS or not ctx.kernels.takes(
        packed or f"{kernel.function}_packed", kernel.function, pays=pays
    ):
        return ()
    size = packed_bytes(element, *sizes, column_bytes=column_bytes or _COLUMN_BYTES)
    if not column_bytes and _gains_from_wide_blocks(element, sizes):
        wide = packed_bytes(element, *sizes, column_bytes=_WIDE_COLUMN_BYTES)
        size = wide if ctx.kernels.affords(wide) else size
    return (TensorType(ElementType.UINT8, (size,)),)


def _gains_from_wide_blocks(element: ElementType, sizes: Sequence[Dim]) -> bool:
    """True if many rows pass by more columns than a block has, at a small batch where that is free."""
    rows, columns, depth = (evaluate(d, dict.fromkeys(symbols_in(d), _SAMPLES)) for d in sizes)
    return rows >= _WIDE_ROWS and columns * min(depth, _DEEP) * element.size > _COLUMN_BYTES


def packed_bytes(
    element: ElementType, rows: Dim, columns: Dim, depth: Dim, *, column_bytes: int = _COLUMN_BYTES
) -> int:
    """The bytes of the packed blocks of a product of `rows` and `columns` with sums of `depth` products, in numbers of
    type `element`, on any target; free sizes count as large, and columns take `column_bytes` at most."""
    deep = min(depth, _DEEPEST) if isinstance(depth, int) else _DEEPEST
    row_bytes = _ROW_BYTES
    if isinstance(rows, int):
        row_bytes = min(row_bytes, ((rows + _TALLEST - 1) * deep + _BEYOND_ROWS) * element.size)
    if isinstance(columns, int):
        column_bytes = min(column_bytes, (columns * element.size + _WIDEST) * deep)
    return row_bytes + column_bytes


def is_large_outer(element: ElementType, rows: Dim, columns: Dim, depth: Dim) -> bool:
    """True of a product of `rows`, `columns` and `depth`, free or not, in numbers of type `element`, that is or may be
    an outer product whose result leaves the second nearest cache."""
    if isinstance(depth, int) and depth != 1:
        return False
    known = [d for d in (rows, columns) if isinstance(d, int)]
    return len(known) < 2 or prod(known) * element.size >= _LARGE_OUTER


def _pays(known: list[int]) -> bool:
    """True if packing pays at these sizes and any others."""
    known = sorted(known)
    if len(known) < 2:
        return bool(known) and known[0] >= _HEAD
    return known[-2] >= _LONG and known[-1] * known[-2] >= LARGE_MATRIX


def _pays_at_least(sizes: Sequence[Dim], free: Mapping[str, int]) -> bool:
    """True if packing pays at all three sizes when those that are free have the size that `free` gives, or are as small
    as they can be: of narrow layers over many words or places, where a batch of one has enough rows. Where none is
    free, the least size may be the batch as well as a rank: a small layer over eight samples gains less than the
    kernel takes."""
    if len(sizes) != 3 or not all(map(never_negative, sizes)):
        return False
    low, middle, high = sorted(evaluate(d, {**dict.fromkeys(symbols_in(d), 1), **free}) for d in sizes)
    product = low * middle * high
    if low >= MEDIUM and product >= LARGE_PRODUCT:
        return True
    is_free = not all(isinstance(d, int) for d in sizes)
    return is_free and low >= _LOW_RANK and middle >= _MANY_ROWS and product >= _LOW_RANK_PRODUCT


OPS: tuple[()] = ()
