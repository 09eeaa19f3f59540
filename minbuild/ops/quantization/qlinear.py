"""MatMulInteger, ConvInteger, QLinearMatMul and QLinearConv, made of the operators for plain numbers.

Sums of quantised products are exact: int32 for matrices, double for convolutions, which holds all of int32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ir import ElementType
from minbuild.ops.convolution import conv as _conv
from minbuild.ops.core.definition import FLOAT, Op, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.quantization.dequantize import Format, dequantized

INT32, DOUBLE = ElementType.INT32, ElementType.DOUBLE
_FEW = 16  # weights that are as good as folded


def _shifted(b: GraphBuilder, i: int, zero: int, to: ElementType, axis: int) -> Value:
    """Input `i` minus its zero point, input `zero`, which is one number or one for each index of an axis."""
    x = b.x[i].cast(to)
    return x - _along(b, zero, i, axis, to) if b.has(zero) else x


def _along(b: GraphBuilder, i: int, of: int, axis: int, to: ElementType) -> Value:
    """Scale or zero point `i` as `to`, with its numbers along an axis of input `of`."""
    value, shape, rank = b.x[i].cast(to), b.ctx.shape(i), b.ctx.rank(of)
    if len(shape) == 1 and shape[0] != 1:
        return value.unsqueeze([a for a in range(rank) if a != axis % rank])
    return value.squeeze([0]) if len(shape) == 1 else value


def _quantised(b: GraphBuilder, sums: Value, scale: Value, y: int) -> Value:
    """Exact sums times `scale`, in the quantisation of the result: inputs `y` (scale) and `y` + 1 (zero point)."""
    if any(size != 1 for i in (y, y + 1) for size in b.ctx.shape(i)):
        raise UnsupportedUse("the result has more than one scale. Quantise it by one")
    to, zero = (b.x[i].squeeze(tuple(range(b.ctx.rank(i)))) for i in (y, y + 1))
    real = sums.cast(FLOAT) * scale
    return b.add("QuantizeLinear", real, to.cast(FLOAT), zero)


_EXACT = 1 << 24  # whole numbers up to here are exact in float


def _weights(
    b: GraphBuilder, i: int, zero: int, axis: int, bias: int = 0
) -> tuple[Value, ElementType] | None:
    """Input `i` minus its zero point, where both are constants, as weights that stay in eight bits; and the type that
    holds all sums of their products, with 8-bit numbers and a bias up to `bias`. None for other operands."""
    codes, points = b.ctx.content(i), b.ctx.content(zero) if b.has(zero) else np.zeros(1, np.uint8)
    if codes is None or points is None or codes.dtype.itemsize > 1 or codes.ndim < 2 or codes.size <= _FEW:
        return None
    if b.has(zero) and (points.dtype != codes.dtype or points.ndim > 1):
        return None
    if codes.ndim > 2 and axis != 0:
        return None
    rows, columns = codes.shape[0], codes.size // codes.shape[0]
    same = np.unique(points).size == 1
    blocks = (rows, columns) if same else (1, columns) if axis == 0 else (rows, 1)
    stored, _ = Format.of_array(rows, columns, blocks, codes.dtype, points)
    ones = b.constant(np.ones(1 if same else points.size), FLOAT)
    matrix = np.abs(codes.astype(np.int64) - _number(points, codes.ndim, axis)).reshape(rows, columns)
    exact = float(matrix.sum(1 if axis == 0 else 0).max()) * 255 + bias < _EXACT
    element = FLOAT if exact else DOUBLE
    operands = b.x[i], ones, None if same else b.x[zero], None
    return dequantized(b, stored, codes.shape, operands, element), element


def _matmul_sums_of(b: GraphBuilder, i: int, zero: int, j: int, other: int) -> Value:
    """Exact sums of products of inputs `i` and `j`, whose zero points are inputs `zero` and `other`."""
    weights = _weights(b, j, other, -1)
    if weights is None:
        return _shifted(b, i, zero, INT32, -2) @ _shifted(b, j, other, INT32, -1)
    return (_shifted(b, i, zero, weights[1], -2) @ weights[0]).cast(INT32)


def _matmul_body(b: GraphBuilder) -> Results:
    return _matmul_sums_of(b, 0, 2, 1, 3)


def _conv_body(b: GraphBuilder) -> Results:
    w, element = _weights(b, 1, 3, 0) or (_shifted(b, 1, 3, DOUBLE, 0), DOUBLE)
    sums = b.add("Conv", _shifted(b, 0, 2, element, 1), w, **b.ctx.attributes)
    return sums.cast(INT32)


def _qlinear_matmul_body(b: GraphBuilder) -> Results:
    """Inputs: a, its scale and zero point, b and its, scale and zero point of the result."""
    sums = _matmul_sums_of(b, 0, 2, 3, 5)
    scale = _along(b, 1, 0, -2, FLOAT) * _along(b, 4, 3, -1, FLOAT)
    return _quantised(b, sums, scale, 6)


def _qlinear_conv_body(b: GraphBuilder) -> Results:
    """Inputs: x, its scale and zero point, w and its, scale and zero point of the result, a bias in the sums' scale."""
    bias = b.ctx.content(8) if b.has(8) else np.zeros(1)
    most = _EXACT if bias is None else int(np.abs(bias.astype(np.float64)).max())
    w, element = _weights(b, 3, 5, 0, most) or (_shifted(b, 3, 5, DOUBLE, 0), DOUBLE)
    operands = [_shifted(b, 0, 2, element, 1), w]
    if b.has(8):
        operands.append(b.x[8].cast(element))
    sums = b.add("Conv", *operands, **b.ctx.attributes)
    scale = _along(b, 1, 0, 1, FLOAT) * _along(b, 4, 0, 1, FLOAT)
    return _quantised(b, sums, scale, 6)


# --------------------------------------------------------------------------------------------------- references


def _number(x: np.ndarray | None, rank: int, axis: int) -> np.ndarray | float:
    """A scale or zero point in float64, along an axis."""
    if x is None:
        return 0.0
    if x.ndim == 1 and x.size > 1:
        x = x.reshape([-1 if a == axis % rank else 1 for a in range(rank)])
    return x.reshape(()).astype(np.float64) if x.size == 1 else x.astype(np.float64)


def _requantised(real: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    limits = np.iinfo(zero.dtype)
    rounded = np.rint(real / scale.reshape(())) + zero.reshape(())
    return np.clip(rounded, limits.min, limits.max).astype(zero.dtype)


def _matmul_sums(a: np.ndarray, b: np.ndarray, a_zero: Any, b_zero: Any) -> np.ndarray:
    left = a.astype(np.float64) - _number(a_zero, a.ndim, -2)
    return left @ (b.astype(np.float64) - _number(b_zero, b.ndim, -1))


def _conv_sums(attributes: Mapping[str, Any], x: np.ndarray, w: np.ndarray, x_zero: Any, w_zero: Any) -> Any:
    left = x.astype(np.float64) - _number(x_zero, x.ndim, 1)
    return _conv.conv.reference(attributes, left, w - _number(w_zero, w.ndim, 0))  # type: ignore[misc]


def _matmul_reference(
    attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray, a_zero: Any = None, b_zero: Any = None
) -> np.ndarray:
    return _matmul_sums(a, b, a_zero, b_zero).astype(np.int32)


def _conv_reference(
    attributes: Mapping[str, Any], x: np.ndarray, w: np.ndarray, x_zero: Any = None, w_zero: Any = None
) -> np.ndarray:
    return np.asarray(_conv_sums(attributes, x, w, x_zero, w_zero)).astype(np.int32)


def _qlinear_matmul_reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> np.ndarray:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = inputs
    factor = _number(a_scale, a.ndim, -2) * _number(b_scale, b.ndim, -1)
    return _requantised(_matmul_sums(a, b, a_zero, b_zero) * factor, scale, zero)


def _qlinear_conv_reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> np.ndarray:
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, *bias = inputs
    sums = np.asarray(_conv_sums(attributes, x, w, x_zero, w_zero))
    if bias:
        sums = sums + _number(bias[0], x.ndim, 1)
    factor = _number(x_scale, x.ndim, 1) * _number(w_scale, x.ndim, 1)
    return _requantised(sums * factor, scale, zero)


# -------------------------------------------------------------------------------------------------------- cases


def _bytes(random: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.uint8) -> np.ndarray:
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape).astype(dtype)


def _matmul_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for left, right in (((3, 4), (4, 5)), ((2, 3, 7), (2, 7, 4)), ((2, 2, 3), (3, 4)), ((5,), (5, 2))):
        for dtype in (np.uint8, np.int8):
            a, b = _bytes(random, left), _bytes(random, right, dtype)
            name = f"{list(left)} {list(right)} {np.dtype(dtype)}"
            yield TestCase(name, (a, b))
            yield TestCase(f"{name} zero", (a, b, np.array(12, np.uint8), np.array([3], dtype)))
    a, b = _bytes(random, (3, 4)), _bytes(random, (4, 5))
    yield TestCase("zeros", (a, b, _bytes(random, (3,)), _bytes(random, (5,))))
    yield TestCase("no zero for a", (a, b, None, _bytes(random, ())))


def _conv_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for groups, more in ((1, {}), (1, {"pads": (1, 1, 1, 1)}), (2, {"strides": (2, 2)})):
        flags: Mapping[str, Any] = {"group": groups, **more}
        x, w = _bytes(random, (2, 4, 5, 5)), _bytes(random, (6, 4 // groups, 3, 3), np.int8)
        yield TestCase(f"{flags}", (x, w), flags)
        yield TestCase(f"{flags} zero", (x, w, np.array(7, np.uint8)), flags)
        yield TestCase(f"{flags} zeros", (x, w, np.array(7, np.uint8), _bytes(random, (6,), np.int8)), flags)


def _scale(*values: float) -> np.ndarray:
    """Powers of two, so that nothing is rounded before the result is."""
    return np.array(values if len(values) > 1 else values[0], np.float32)


def _qlinear_matmul_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for dtype in (np.uint8, np.int8):
        for left, right in (((3, 4), (4, 5)), ((2, 3, 7), (2, 7, 4))):
            a, b, zero = _bytes(random, left, dtype), _bytes(random, right, dtype), np.array(5, dtype)
            inputs = (a, _scale(0.5), zero, b, _scale(0.25), zero, _scale(64.0), zero)
            yield TestCase(f"{np.dtype(dtype)} {list(left)}", inputs)
        scales = _scale(*(2.0**-i for i in range(3))), _scale(*(2.0**i for i in range(5)))
        a, b = _bytes(random, (3, 4), dtype), _bytes(random, (4, 5), dtype)
        zeros = _bytes(random, (3,), dtype), _bytes(random, (5,), dtype)
        ends = (_scale(512.0), np.array([1], dtype))
        yield TestCase(f"{np.dtype(dtype)} scales", (a, scales[0], zeros[0], b, scales[1], zeros[1], *ends))


def _qlinear_conv_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for groups, pads in ((1, (0, 0, 0, 0)), (2, (1, 1, 1, 1))):
        flags = {"group": groups, "pads": pads}
        x, w = _bytes(random, (2, 4, 5, 5)), _bytes(random, (6, 4 // groups, 3, 3), np.int8)
        ends = (_scale(128.0), np.array(100, np.uint8))
        zeros = np.array(7, np.uint8), np.array(-3, np.int8)
        yield TestCase(f"{flags}", (x, _scale(0.5), zeros[0], w, _scale(0.5), zeros[1], *ends), flags)
        scales, bias = _scale(*(2.0**-i for i in range(6))), random.integers(-999, 999, 6).astype(np.int32)
        inputs = (x, _scale(0.5), zeros[0], w, scales, np.zeros(6, np.int8), *ends, bias)
        yield TestCase(f"{flags} scales, bias", inputs, flags)


matmul_integer = Op(
    "MatMulInteger",
    since=(10,),
    reference=_matmul_reference,
    decompose=_matmul_body,
    decomposes_to=("Cast", "MatMul", "Sub", "minbuild:Dequantize"),
    cases=_matmul_cases,
)
conv_integer = Op(
    "ConvInteger",
    since=(10,),
    reference=_conv_reference,
    decompose=_conv_body,
    decomposes_to=("Cast", "Conv", "Sub", "minbuild:Dequantize"),
    cases=_conv_cases,
)
qlinear_matmul = Op(
    "QLinearMatMul",
    since=(10, 21),
    reference=_qlinear_matmul_reference,
    decompose=_qlinear_matmul_body,
    decomposes_to=("Cast", "MatMul", "Mul", "QuantizeLinear", "Sub", "minbuild:Dequantize"),
    cases=_qlinear_matmul_cases,
)
qlinear_conv = Op(
    "QLinearConv",
    since=(10,),
    reference=_qlinear_conv_reference,
    decompose=_qlinear_conv_body,
    decomposes_to=("Cast", "Conv", "Mul", "QuantizeLinear", "Sub", "minbuild:Dequantize"),
    cases=_qlinear_conv_cases,
)

OPS = (matmul_integer, conv_integer, qlinear_matmul, qlinear_conv)
