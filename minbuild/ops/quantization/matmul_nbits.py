"""MatMulNBits: a product with a matrix kept in four or eight bits, with a scale for each block of a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ir import ElementType
from minbuild.ops.core.definition import FLOAT, Op, OpContext, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.quantization.dequantize import Format, dequantized

_ZERO_POINTS, _GROUPS, _BIAS = 3, 4, 5  # optional inputs


def _stored(attributes: Mapping[str, Any], zero: int | None = None) -> Format:
    bits, block = (int(attributes.get(name, default)) for name, default in (("bits", 4), ("block_size", 0)))
    if bits not in (4, 8):
        raise UnsupportedUse(f"its weights have {bits} bits; has 4 and 8")
    rows, columns = int(attributes["N"]), int(attributes["K"])
    stride = -(-columns // block) * block
    zero = 1 << bits - 1 if zero is None else zero
    return Format(bits, rows, columns, stride, row_block=1, column_block=block, zero=zero)


def _points(attributes: Mapping[str, Any], given: np.ndarray) -> np.ndarray:
    """One byte for each block. Those of four bits stand two in a byte, every row by itself."""
    rows, blocks = int(attributes["N"]), -(-int(attributes["K"]) // int(attributes["block_size"]))
    if int(attributes.get("bits", 4)) == 4:
        raw = given.reshape(rows, -1)
        given = np.stack((raw & 15, raw >> 4), 2).reshape(rows, -1)
    return np.ascontiguousarray(given.reshape(rows, -1)[:, :blocks])


def _weights(b: GraphBuilder) -> Value:
    """The matrix [N,K]."""
    ctx: OpContext = b.ctx
    if ctx.has(_GROUPS):
        raise UnsupportedUse(
            "it has groups of columns (g_idx), which are not supported. Quantise it without them"
        )
    zero, zeros = None, None
    if ctx.has(_ZERO_POINTS):
        given = ctx.content(_ZERO_POINTS)
        if ctx.element(_ZERO_POINTS) is not ElementType.UINT8 or given is None:
            raise UnsupportedUse("its zero points must be constants in the bits of its weights")
        points = _points(ctx.attributes, given)
        if np.unique(points).size == 1:
            zero = int(points.ravel()[0])
        else:
            zeros = b.constant(points.ravel(), ElementType.UINT8)
    stored = _stored(ctx.attributes, zero)
    scales = b.x[2] if ctx.element(2) is FLOAT else b.x[2].cast(FLOAT)
    wide = dequantized(b, stored, (stored.rows, stored.columns), (b.x[1], scales, zeros, None))
    return wide if ctx.element() is FLOAT else wide.cast(ctx.element())


def _body(b: GraphBuilder) -> Results:
    y = b.microsoft("FusedMatMul", b.x[0], _weights(b), transB=1)
    return y + b.x[_BIAS] if b.has(_BIAS) else y


def _gradient(b: GradientBuilder) -> Results:
    """Of the first factor and the bias; quantised weights do not train."""
    dx = b.microsoft("FusedMatMul", b.dy[0], _weights(b)) if 0 in b.requires_grad else None
    if _BIAS not in b.requires_grad:
        return dx
    bias = b.summed_to(b.dy[0], (*b.ctx.shape(0)[:-1], int(b.ctx.attributes["N"])), _BIAS)
    return (dx, None, None, None, None, bias)


def _reference(
    attributes: Mapping[str, Any],
    a: np.ndarray,
    codes: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    points = None if zeros is None else _points(attributes, zeros)
    y = a @ _stored(attributes).values(codes, scales, points).T
    return np.asarray(y if bias is None else y + bias)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for bits in (4, 8):
        for rows, columns, block, shape in (
            (6, 32, 16, (3, 32)),
            (5, 40, 32, (2, 3, 40)),
            (9, 64, 64, (1, 64)),
        ):
            blocks = -(-columns // block)
            codes = random.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8)
            scales = np.exp2(random.integers(-5, 0, rows * blocks)).astype(np.float32)
            width = -(-blocks // 2) if bits == 4 else blocks
            zeros = random.integers(0, 256, rows * width).astype(np.uint8)
            attributes = {"N": rows, "K": columns, "block_size": block, "bits": bits}
            inputs = (random.standard_normal(shape), codes, scales)
            name, constant = f"{bits} bits, {rows} x {columns}", frozenset({1, 2, 3})
            yield TestCase(name, inputs, attributes, constant, ulps=32)
            yield TestCase(f"{name}, zero points", (*inputs, zeros), attributes, constant, ulps=32)
            bias = random.standard_normal(rows)
            yield TestCase(f"{name}, bias", (*inputs, zeros, None, bias), attributes, constant, ulps=32)


matmul_nbits = Op(
    "MatMulNBits",
    domain=MICROSOFT,
    reference=_reference,
    decompose=_body,
    decomposes_to=("Add", "Cast", "com.microsoft:FusedMatMul", "minbuild:Dequantize"),
    cases=_cases,
    gradient=_gradient,
)

OPS = (matmul_nbits,)
