"""MatMulBnb4: a product with a matrix kept in four bits per element, which is unpacked by plain operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ir import ElementType
from minbuild.ops.core.definition import Op, TestCase
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

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


def _weights(b: GraphBuilder) -> Value:
    """Inputs 1 (two elements a byte, the high half first) and 2 (a scale per block) as a matrix [N,K]."""
    rows, columns, block = (int(b.ctx.attributes[n]) for n in ("N", "K", "block_size"))
    packed = b.x[1].reshape((-1,))
    four, fifteen = (b.constant(v, ElementType.UINT8) for v in (4, 15))
    high = b.add("BitShift", packed, four, direction="RIGHT")
    low = b.add("BitwiseAnd", packed, fifteen)
    pairs = b.add("Concat", *(half.unsqueeze([1]) for half in (high, low)), axis=1)
    codes = pairs.reshape((-1,)).cast(ElementType.INT32)
    values = b.add("Gather", b.constant(_TABLES[int(b.ctx.attributes["quant_type"])]), codes)
    scales = b.add("Expand", b.x[2].reshape((-1,)).unsqueeze([1]), b.integers((1, block)))
    count = (rows * columns,)
    both = (_first(b, x, count) for x in (values, scales.reshape((-1,))))
    return b.add("Mul", *both).reshape((rows, columns))


def _first(b: GraphBuilder, x: Value, count: tuple[int]) -> Value:
    """The first elements of a vector: the last byte and the last block may hold more than there are."""
    return b.add("Slice", x, b.integers((0,)), b.integers(count), b.integers((0,)))


def _body(b: GraphBuilder) -> Results:
    """y = a W^T, or a W where `transB` is 0."""
    weights = _weights(b)
    if int(b.ctx.attribute("transB", 1)):
        weights = weights.transpose((1, 0))
    return b.x[0] @ weights


def _gradient(b: GradientBuilder) -> Results:
    """Of the first factor; quantised weights do not train."""
    weights = _weights(b)
    if not int(b.ctx.attribute("transB", 1)):
        weights = weights.transpose((1, 0))
    return b.dy[0] @ weights


def _reference(
    attributes: Mapping[str, Any], a: np.ndarray, packed: np.ndarray, scales: np.ndarray
) -> np.ndarray:
    rows, columns = attributes["N"], attributes["K"]
    codes = np.stack([packed.ravel() >> 4, packed.ravel() & 15], 1).ravel()[: rows * columns]
    blocks = np.repeat(scales.ravel(), attributes["block_size"])[: rows * columns]
    weights = (np.asarray(_TABLES[attributes["quant_type"]])[codes] * blocks).reshape(rows, columns)
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
            scales = random.uniform(0.1, 1, -(-count // block))
            attributes = {"N": rows, "K": columns, "block_size": block, "quant_type": kind}
            inputs = (random.standard_normal(shape), packed, scales)
            yield TestCase(f"{name}, {rows} x {columns}", inputs, attributes, frozenset({2}), ulps=64)


matmul_bnb4 = Op(
    "MatMulBnb4",
    domain=MICROSOFT,
    reference=_reference,
    decompose=_body,
    decomposes_to=(
        "BitShift",
        "BitwiseAnd",
        "Cast",
        "Concat",
        "Expand",
        "Gather",
        "MatMul",
        "Mul",
        "Slice",
        "Transpose",
    ),
    cases=_cases,
    gradient=_gradient,
)

OPS = (matmul_bnb4,)
