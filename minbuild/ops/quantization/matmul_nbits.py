"""MatMulNBits: a product with a matrix kept in four or eight bits, with a scale for each block of a row.

Zero points are integers, or real. Kernels read the former with the weights; the latter (HQQ) move all
weights of a block by one number, which is a product with the sums of x over blocks.
"""

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
    if ctx.has(_ZERO_POINTS) and not ctx.element(_ZERO_POINTS).is_real:
        given = ctx.content(_ZERO_POINTS)
        if ctx.element(_ZERO_POINTS) is not ElementType.UINT8 or given is None:
            raise UnsupportedUse("its zero points must be constants, in the bits of its weights or real")
        points = _points(ctx.attributes, given)
        if np.unique(points).size == 1:
            zero = int(points.ravel()[0])
        else:
            zeros = b.constant(points.ravel(), ElementType.UINT8)
    stored = _stored(ctx.attributes, zero)
    scales = b.x[2] if ctx.element(2) is FLOAT else b.x[2].cast(FLOAT)
    wide = dequantized(b, stored, (stored.rows, stored.columns), (b.x[1], scales, zeros, None))
    return wide if ctx.element() is FLOAT else wide.cast(ctx.element())


def _offsets(b: GraphBuilder) -> Value | None:
    """The numbers [N, blocks] that real zero points add to the weights of each block; None where there are none."""
    ctx = b.ctx
    if not ctx.has(_ZERO_POINTS) or not ctx.element(_ZERO_POINTS).is_real:
        return None
    points, scales = ctx.content(_ZERO_POINTS), ctx.content(2)
    if points is None or scales is None:
        raise UnsupportedUse("its scales and real zero points must be constants")
    stored = _stored(ctx.attributes)
    offsets = (stored.zero - points.astype(np.float64)) * scales.astype(np.float64).reshape(points.shape)
    return b.constant(offsets.reshape(stored.rows, -1))


def _split(b: GraphBuilder) -> tuple[list[int], int]:
    """The shape of x with its last axis as blocks and columns of them; and the columns that are missing."""
    stored = _stored(b.ctx.attributes)
    block = min(stored.column_block, stored.columns)
    blocks = -(-stored.columns // block)
    return [*[0] * (b.ctx.rank() - 1), blocks, block], blocks * block - stored.columns


def _block_sums(b: GraphBuilder) -> Value:
    """The sums of x over the columns of each block."""
    shape, missing = _split(b)
    x = b.x[0]
    if missing:
        x = b.add("Pad", x, b.integers([*[0] * (2 * b.ctx.rank() - 1), missing]))
    return x.reshape(shape).sum([len(shape) - 1]).squeeze([len(shape) - 1])


def _body(b: GraphBuilder) -> Results:
    y = b.microsoft("FusedMatMul", b.x[0], _weights(b), transB=1)
    offsets = _offsets(b)
    if offsets is not None:
        y = y + b.microsoft("FusedMatMul", _block_sums(b), offsets, transB=1)
    return y + b.x[_BIAS] if b.has(_BIAS) else y


def _input_gradient(b: GradientBuilder) -> Value:
    dx = b.microsoft("FusedMatMul", b.dy[0], _weights(b))
    offsets = _offsets(b)
    if offsets is None:
        return dx
    (*_, blocks, block), missing = _split(b)
    per_block = b.dy[0] @ offsets
    if missing:
        columns = int(b.ctx.attributes["K"])
        return dx + b.add("Gather", per_block, b.integers(k // block for k in range(columns)), axis=-1)
    rank = b.ctx.rank()
    return (dx.reshape([*[0] * (rank - 1), blocks, block]) + per_block.unsqueeze([rank])).reshape_like(dx)


def _gradient(b: GradientBuilder) -> Results:
    """Of the first factor and the bias; quantised weights do not train."""
    dx = _input_gradient(b) if 0 in b.requires_grad else None
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
    stored = _stored(attributes)
    if zeros is not None and zeros.dtype.kind == "f":
        shift = ((stored.zero - zeros) * scales).reshape(stored.rows, -1)
        weights = stored.values(codes, scales) + shift.repeat(stored.column_block, 1)[:, : stored.columns]
    else:
        weights = stored.values(codes, scales, None if zeros is None else _points(attributes, zeros))
    y = a @ weights.T
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
            real = random.uniform(0, 1 << bits, rows * blocks)
            yield TestCase(f"{name}, real zero points", (*inputs, real), attributes, constant, ulps=32)
            bias = random.standard_normal(rows)
            yield TestCase(f"{name}, bias", (*inputs, zeros, None, bias), attributes, constant, ulps=32)


matmul_nbits = Op(
    "MatMulNBits",
    domain=MICROSOFT,
    reference=_reference,
    decompose=_body,
    decomposes_to=(
        *("Add", "Cast", "Pad", "ReduceSum", "Reshape", "Squeeze"),
        *("com.microsoft:FusedMatMul", "minbuild:Dequantize"),
    ),
    cases=_cases,
    gradient=_gradient,
)

OPS = (matmul_nbits,)
