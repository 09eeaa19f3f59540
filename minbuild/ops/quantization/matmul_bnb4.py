"""MatMulBnb4: a product with a matrix kept in four bits per element, which number the values of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import FLOAT, Op, TestCase
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.quantization.dequantize import Format, dequantized

# The 16 values of each type, parts of a block's largest magnitude: four bits of floating point, and the quantiles of a
# normal distribution (Dettmers and others: QLoRA, 2023, appendix E).
_POSITIVE = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_FLOAT4 = (*_POSITIVE, *(-v for v in _POSITIVE))
_NORMAL4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)
_TABLES = (_FLOAT4, _NORMAL4)


def _stored(attributes: Mapping[str, Any]) -> Format:
    """Blocks of elements one after the other: parts of rows, or whole rows, where their sizes allow."""
    rows, columns, block = (int(attributes[n]) for n in ("N", "K", "block_size"))
    if columns % block == 0:
        return Format(4, rows, columns, columns, row_block=1, column_block=block, high_first=1)
    if block % columns == 0:
        return Format(
            4, rows, columns, columns, row_block=block // columns, column_block=columns, high_first=1
        )
    return Format(4, 1, rows * columns, rows * columns, row_block=1, column_block=block, high_first=1)


def _weights(b: GraphBuilder) -> Value:
    """Inputs 1 (two elements a byte, the high half first) and 2 (a scale per block) as a matrix [N,K]."""
    table = b.constant(_TABLES[int(b.ctx.attributes["quant_type"])], FLOAT)
    scales = b.x[2] if b.ctx.element(2) is FLOAT else b.x[2].cast(FLOAT)
    shape = tuple(int(b.ctx.attributes[n]) for n in ("N", "K"))
    wide = dequantized(b, _stored(b.ctx.attributes), shape, (b.x[1], scales, None, table))
    return wide if b.ctx.element() is FLOAT else wide.cast(b.ctx.element())


def _product(b: GraphBuilder, x: Value, back: bool) -> Value:
    """x W^T, or x W where `transB` is 0; the other one `back`."""
    transposed = bool(b.ctx.attribute("transB", 1)) != back
    return b.microsoft("FusedMatMul", x, _weights(b), transB=int(transposed))


def _body(b: GraphBuilder) -> Results:
    return _product(b, b.x[0], back=False)


def _gradient(b: GradientBuilder) -> Results:
    """Of the first factor; quantised weights do not train."""
    return _product(b, b.dy[0], back=True)


def _reference(
    attributes: Mapping[str, Any], a: np.ndarray, packed: np.ndarray, scales: np.ndarray
) -> np.ndarray:
    rows, columns = attributes["N"], attributes["K"]
    codes = np.stack([packed.ravel() >> 4, packed.ravel() & 15], 1).ravel()[: rows * columns]
    blocks = np.repeat(scales.ravel(), attributes["block_size"])[: rows * columns]
    table = np.asarray(_TABLES[attributes["quant_type"]], np.float32).astype(np.float64)
    weights = (table[codes] * blocks).reshape(rows, columns)
    return a @ (weights.T if attributes.get("transB", 1) else weights)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for kind, name in enumerate(("four-bit floats", "quantiles")):
        for rows, columns, block, shape in (
            (6, 32, 16, (3, 32)),
            (5, 7, 16, (2, 3, 7)),
            (1, 64, 64, (4, 64)),
        ):
            count = rows * columns
            packed = random.integers(0, 256, (count + 1) // 2).astype(np.uint8)
            scales = np.exp2(random.integers(-4, 1, -(-count // block))).astype(np.float32)
            attributes = {"N": rows, "K": columns, "block_size": block, "quant_type": kind}
            inputs = (random.standard_normal(shape), packed, scales)
            yield TestCase(f"{name}, {rows} x {columns}", inputs, attributes, frozenset({2}), ulps=64)


matmul_bnb4 = Op(
    "MatMulBnb4",
    domain=MICROSOFT,
    reference=_reference,
    decompose=_body,
    decomposes_to=("Cast", "com.microsoft:FusedMatMul", "minbuild:Dequantize"),
    cases=_cases,
    gradient=_gradient,
)

OPS = (matmul_bnb4,)
