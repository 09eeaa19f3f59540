"""QuantizeLinear and DequantizeLinear, per tensor, per axis and blocked, as simpler operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from minbuild.ir import ElementType
from minbuild.ops.core.definition import FLOAT, Op, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import MICROSOFT, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.quantization.dequantize import Format, dequantized

_QUANTISED = (ElementType.INT8, ElementType.UINT8, ElementType.INT16, ElementType.UINT16)


def _as(x: Value, source: ElementType, to: ElementType) -> Value:
    return x if source is to else x.cast(to)


def _spread(b: GraphBuilder, i: int, element: ElementType) -> Value:
    """Input `i`, a scale or zero point, as `element` and so that it broadcasts to input 0."""
    value = _as(b.x[i], b.ctx.element(i), element)
    shape, own = b.ctx.shape(0), b.ctx.shape(i)
    axis = b.ctx.axis(1) if len(shape) > 1 else 0
    block = int(b.ctx.attribute("block_size", 0))
    if block:
        size = shape[axis]
        if not isinstance(size, int):
            raise UnsupportedUse(f"blocks of {block} need a fixed size along axis {axis}")
        return b.add("Gather", value, b.integers(k // block for k in range(size)), axis=axis)
    if len(own) == 1 and own[0] != 1:
        return value.unsqueeze(tuple(a for a in range(len(shape)) if a != axis))
    return value.squeeze(tuple(range(len(own))))


def _element(number: int) -> ElementType | None:
    """The element type of an attribute; None for 0, which leaves it open."""
    if number == 0:
        return None
    if number not in set(ElementType):
        raise UnsupportedUse(f"element type {number} is not supported")
    return ElementType(number)


def _quantize_body(b: GraphBuilder) -> Results:
    """saturate(round(x / scale) + zero point): the division in the precision asked for, the rest in float or double,
    which hold all quantised numbers."""
    ctx = b.ctx
    to = _element(ctx.attribute("output_dtype", 0))
    to = ctx.element(2) if ctx.has(2) else to or ElementType.UINT8
    if to not in _QUANTISED:
        raise UnsupportedUse(f"it quantises to {to.label}; has {', '.join(e.label for e in _QUANTISED)}")
    precision = _element(ctx.attribute("precision", 0)) or ctx.element(1)
    precision = precision if precision.is_real else FLOAT
    wide = ElementType.DOUBLE if precision is ElementType.DOUBLE else FLOAT
    ratio = _as(b.x[0], ctx.element(0), precision) / _spread(b, 1, precision)
    y = _as(ratio.round(), precision, wide)
    if b.has(2):
        y = y + _spread(b, 2, wide)
    limits = np.iinfo(to.dtype)
    y = b.add("Clip", y, b.constant(limits.min, wide), b.constant(limits.max, wide))
    return y.cast(to)


_FEW = 16  # weights that are as good as folded


def _weights(b: GraphBuilder, to: ElementType) -> Value | None:
    """Weights in 8 or 16 bits, read in place; None for what is computed, for few numbers, and for blocks that do not
    fit the kernels."""
    ctx = b.ctx
    shape = [d for d in ctx.shape() if isinstance(d, int)]
    made = ctx.maker(0)
    if ctx.element() not in _QUANTISED or made is not None or len(shape) < ctx.rank() or prod(shape) <= _FEW:
        return None
    if ctx.has(2) and ctx.element(2) is not ctx.element():
        return None
    size, block = prod(ctx.shape(1)), int(ctx.attribute("block_size", 0))  # type: ignore[arg-type]
    axis = ctx.axis(1) if len(shape) > 1 else 0
    # Rows and columns of the matrix that the weights are, and of those that share a scale.
    split = axis if 0 < axis < len(shape) else min(1, len(shape) - 1)
    if block:
        split = axis if axis == len(shape) - 1 else axis + 1
        whole = axis == len(shape) - 1 or prod(shape[:axis]) == 1 or shape[axis] % block == 0
        if not whole or (axis < len(shape) - 1 and axis + 2 != len(shape)):
            return None
    rows, columns = prod(shape[:split]), prod(shape[split:])
    if block:
        blocks = (1, block) if axis == len(shape) - 1 else (block, 1)
    elif size == 1:
        blocks = rows, columns
    elif axis == 0:
        blocks = (1, columns) if split else (1, 1)
    else:
        blocks = rows, prod(shape[axis + 1 :])
    point = ctx.content(2) if ctx.has(2) else np.zeros(1, ctx.element().dtype)
    stored, same = Format.of_array(rows, columns, blocks, ctx.element().dtype, point)
    zeros = None if same else b.x[2]
    inputs = (b.x[0], _as(b.x[1], ctx.element(1), FLOAT), zeros, None)
    wide = to if to is ElementType.DOUBLE else FLOAT
    return _as(dequantized(b, stored, shape, inputs, wide), wide, to)


def _dequantize_body(b: GraphBuilder) -> Results:
    """(x - zero point) * scale in float, which holds all differences of 16-bit numbers."""
    ctx = b.ctx
    to = _element(ctx.attribute("output_dtype", 0)) or ctx.element(1)
    weights = _weights(b, to)
    if weights is not None:
        return weights
    y = _as(b.x[0], ctx.element(0), FLOAT)
    if b.has(2):
        y = y - _spread(b, 2, FLOAT)
    return _as(y * _spread(b, 1, FLOAT), FLOAT, to)


def _spread_array(attributes: Mapping[str, Any], value: np.ndarray, x: np.ndarray) -> np.ndarray:
    axis = attributes.get("axis", 1) % x.ndim if x.ndim > 1 else 0
    if attributes.get("block_size", 0):
        return np.repeat(value, attributes["block_size"], axis)[
            tuple(slice(x.shape[a]) for a in range(x.ndim))
        ]
    if value.size == 1:
        return value.reshape(())
    return value.reshape([-1 if a == axis else 1 for a in range(x.ndim)])


def _quantize_reference(
    attributes: Mapping[str, Any], x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None
) -> np.ndarray:
    to = ElementType(attributes.get("output_dtype", 0) or 2).dtype if zero is None else zero.dtype
    q = np.rint(x / _spread_array(attributes, scale, x))
    if zero is not None:
        q = q + _spread_array(attributes, zero, x)
    return np.clip(q, np.iinfo(to).min, np.iinfo(to).max).astype(to)


def _dequantize_reference(
    attributes: Mapping[str, Any], x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None
) -> np.ndarray:
    difference = x.astype(np.float64)
    if zero is not None:
        difference = difference - _spread_array(attributes, zero, x)
    to = attributes.get("output_dtype", 0)
    y = difference * _spread_array(attributes, scale, x)
    return np.asarray(y.astype(ElementType(to).dtype) if to else y)


def _granularities() -> Iterable[tuple[str, tuple[int, ...], dict[str, int]]]:
    """Shapes of the scale of an input [2, 6, 3], with the attributes that say what it means."""
    yield "per tensor", (), {}
    yield "one number", (1,), {}
    yield "per axis 1", (6,), {}
    yield "per axis -1", (3,), {"axis": -1}
    yield "blocked", (2, 3, 3), {"axis": 1, "block_size": 2}
    yield "blocked, the last one smaller", (2, 2, 3), {"axis": 1, "block_size": 4}


def _cases(random: np.random.Generator, back: bool) -> Iterable[TestCase]:
    for name, shape, attributes in _granularities():
        # Powers of two, so that rounding finds the same ties in every precision.
        scale = np.exp2(random.integers(-3, 3, shape)).astype(np.float64)
        for element in _QUANTISED:
            limits = np.iinfo(element.dtype)
            x: np.ndarray = np.round(random.standard_normal((2, 6, 3)) * 512) / 8
            if back:
                x = random.integers(limits.min, limits.max, (2, 6, 3), element.dtype, True)
            zero = random.integers(0, 100, shape).astype(element.dtype)
            constant = frozenset({1, 2})
            yield TestCase(f"{name} {element.label}", (x, scale, zero), attributes, constant)
    yield TestCase("no zero point", (x, np.array(0.5)), {} if back else {"output_dtype": int(_QUANTISED[2])})


def _quantize_cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from _cases(random, False)
    yield TestCase("of int32", (random.integers(-999, 999, (3, 5)).astype(np.int32), np.array(4.0)))


def _dequantize_cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from _cases(random, True)
    yield TestCase("of int32", (random.integers(-999, 999, (3, 5)).astype(np.int32), np.array(0.25)))


quantize = Op(
    "QuantizeLinear",
    since=(10, 13, 19, 21, 23, 24, 25),
    reference=_quantize_reference,
    decompose=_quantize_body,
    decomposes_to=("Add", "Cast", "Clip", "Div", "Gather", "Round"),
    cases=_quantize_cases,
)
dequantize = Op(
    "DequantizeLinear",
    since=(10, 13, 19, 21, 23, 24, 25),
    reference=_dequantize_reference,
    decompose=_dequantize_body,
    decomposes_to=("Cast", "Gather", "Mul", "Sub", "minbuild:Dequantize"),
    cases=_dequantize_cases,
)

# ONNX Runtime's quantizers write these into models of opsets whose own operators lack 16 or 4 bits.
OPS = (
    quantize,
    dequantize,
    *(replace(op, domain=MICROSOFT, since=(1,), cases=None) for op in (quantize, dequantize)),
)
