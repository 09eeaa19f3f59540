"""DequantizeProduct: a matrix product whose second factor stays in 4, 8 or 16 bits.

It computes the bits of the product with the dequantized matrix, which exists only block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase, require_equal
from minbuild.ops.linear_algebra.gemm_packing import QUANTIZED_COLUMN_BYTES, packing_scratch
from minbuild.ops.quantization.dequantize import (
    OWN,
    PACKED,
    TRANSPOSED,
    Format,
    formats,
    operands,
    product_kernel,
)

DEQUANTIZE_PRODUCT = "minbuild:DequantizeProduct"
_ROW_BYTES, _MOST_ROWS = 4096, 4  # of dequantized rows of the matrix, where products go along them


def _sizes(ctx: OpContext) -> tuple[int, int]:
    """Depth and columns of the product."""
    stored = Format.of(ctx.attributes)
    sizes = stored.rows, stored.columns
    return sizes[::-1] if ctx.attribute("transW", 0) else sizes


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    depth, columns = _sizes(ctx)
    a = ctx.shape(0)
    a = (*a[:-2], a[-1], a[-2]) if ctx.attribute("transA", 0) else a
    require_equal(a[-1], depth, f"cannot multiply {list(a)} with {depth} x {columns} weights")
    return (TensorType(ctx.element(), (*a[:-1], columns)),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    stored, (depth, columns), element = Format.of(ctx.attributes), _sizes(ctx), ctx.element()
    trans_a, trans_w = (int(ctx.attribute(name, 0)) for name in ("transA", "transW"))
    names, bias = operands(ctx, 1), ctx.name(5)
    size = product(ctx.result_shape()[:-1])
    rows = max(1, min(_MOST_ROWS, columns, _ROW_BYTES // (depth * element.size)))
    along = TensorType(ElementType.UINT8, (rows * depth * element.size if trans_w else 0,))
    # Of columns that are dequantized from a whole row, one is in it at least.
    most = max(QUANTIZED_COLUMN_BYTES, trans_w * depth * element.size)
    room = packing_scratch(
        ctx, product_kernel, size, columns, depth, packed="dequantize.packed", column_bytes=most
    )
    call = product_kernel.call(
        ctx.result(),
        ctx.name(0),
        *names,
        bias,
        *(room or (along,)),
        types=(element,),
        params=(
            trans_a,
            TRANSPOSED * trans_w | PACKED * bool(room),
            float(ctx.attribute("alpha", 1.0)),
            int(ctx.attribute("bias_after", 0)),
            stored.rows,
            *stored.params(),
        ),
        features=(
            *stored.features(bool(names[2]), bool(names[3])),
            *(("bias",) if bias else ()),
            *(("packed",) if room else ()),
            *(("transposed",) if trans_w else ()),
        ),
        accumulate=ctx.accumulate,
    )
    return (call,)


def _reference(
    attributes: Mapping[str, Any],
    a: np.ndarray,
    codes: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray | None = None,
    table: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    w = Format.of(attributes).values(codes, scale, zero, table)
    a = np.swapaxes(a, -1, -2) if attributes.get("transA", 0) else a
    y = a @ (w.T if attributes.get("transW", 0) else w) * attributes.get("alpha", 1.0)
    return np.asarray(y if bias is None else y + bias)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    # Of the last one several blocks of rows meet several of columns.
    sizes = (1, 5, 7), (4, 33, 70), (33, 9, 80), (3, 190, 300), (40, 200, 180), (300, 190, 700)
    for m, rows, columns in sizes:
        for index, (name, stored, inputs) in enumerate(formats(random, rows, columns)):
            if m > 100 and index % 5:
                continue
            for trans_w in (0, 1):
                trans_a = index % 3 == 1
                depth, width = (columns, rows) if trans_w else (rows, columns)
                a = random.standard_normal((depth, m) if trans_a else (m, depth))
                bias = random.standard_normal(width) if index % 2 else None
                flags = {"transA": int(trans_a), "transW": trans_w, "bias_after": index // 2 % 2}
                yield TestCase(
                    f"{m} x {rows} x {columns} {trans_w}, {name}",
                    (a, *inputs, bias),
                    {**stored.attributes, **flags, "alpha": 1.0 if index % 4 else 0.5},
                    frozenset(range(1, 5)),
                    ulps=max(16, depth // 8),
                )


dequantize_product = Op(
    "DequantizeProduct",
    domain=OWN,
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(product_kernel,),
    accumulates=frozenset({0}),
    cases=_cases,
)

OPS = (dequantize_product,)
