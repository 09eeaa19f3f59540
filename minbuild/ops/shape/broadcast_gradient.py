"""Building blocks of ORT's gradients of broadcasting operators: BroadcastGradientArgs and DivGrad."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ir.dims import Dim
from minbuild.ops.core.definition import INT64, Op, OpContext, TestCase, broadcast_shapes
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results


def _axes(shape: Sequence[Dim], other: Sequence[Dim]) -> list[int]:
    """The axes of the common shape along which an operand was repeated, the last one first as ORT lists them."""
    rank = max(len(shape), len(other))
    own, theirs = ((1,) * (rank - len(s)) + tuple(s) for s in (shape, other))
    lead = rank - len(shape)
    return [a for a in reversed(range(rank)) if a < lead or (own[a] == 1 and theirs[a] != 1)]


def _both_axes(ctx: OpContext) -> Sequence[np.ndarray]:
    a, b = ctx.dims(0), ctx.dims(1)
    broadcast_shapes(a, b)
    return tuple(np.array(axes, np.int64) for axes in (_axes(a, b), _axes(b, a)))


def _args_infer(ctx: OpContext) -> Sequence[TensorType]:
    return [TensorType(INT64, axes.shape) for axes in _both_axes(ctx)]


def _args_reference(
    attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    first, second = a.tolist(), b.tolist()
    return np.array(_axes(first, second), np.int64), np.array(_axes(second, first), np.int64)


def _args_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for a, b in (((2, 1, 4, 1), (3, 1, 5)), ((1, 1), (3, 1, 1)), ((4,), (3, 4))):
        shapes = tuple(np.array(s, np.int64) for s in (a, b))
        yield TestCase(f"{list(a)} and {list(b)}", shapes, constant=frozenset({0, 1}), outputs=2)


broadcast_gradient_args = Op(
    "BroadcastGradientArgs",
    domain="com.microsoft",
    infer=_args_infer,
    shape_value=_both_axes,
    reference=_args_reference,
)


def _div_grad_body(b: GraphBuilder) -> Results:
    """dA = dY / B and dB = -dA * A / B, each summed over the axes along which its operand was repeated."""
    x, y = ([v.name for v in values] for values in (b.x, b.y))
    both = GradientBuilder(b.ctx, x=x, y=y, dy=(), requires_grad=(), prefix=f"{b.prefix}/sums", opset=b.opset)
    both.nodes = b.nodes
    made = broadcast_shapes(b.ctx.shape(1), b.ctx.shape(2))
    da = b.x[0] / b.x[2]
    results = [both.summed_to(da, made, 1) if b.y[0] else None]
    if len(b.y) > 1 and b.y[1]:
        ratio = b.x[1] / b.x[2]
        results.append(-both.summed_to(da * ratio, made, 2))
    return results


def _div_grad_reference(
    attributes: Mapping[str, Any], dy: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    da, db = _summed(dy / b, a.shape), _summed(-dy * a / b**2, b.shape)
    return da, db


def _summed(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    lead = x.ndim - len(shape)
    axes = tuple(i for i in range(x.ndim) if i < lead or shape[i - lead] == 1)
    return x.sum(axes, keepdims=True).reshape(shape)


def _div_grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for a, b in (((3, 5), (3, 5)), ((3, 5), (5,)), ((), (2, 3)), ((2, 1, 4), (3, 1)), ((2, 3), ())):
        dy = random.standard_normal(np.broadcast_shapes(a, b))
        divisor = random.standard_normal(b)
        inputs = (dy, random.standard_normal(a), np.where(divisor < 0, divisor - 0.5, divisor + 0.5))
        for absent in (frozenset[int](), frozenset({0})):
            yield TestCase(f"{list(a)} by {list(b)} {len(absent)}", inputs, outputs=2, absent=absent, ulps=8)


div_grad = Op(
    "DivGrad",
    domain="com.microsoft",
    reference=_div_grad_reference,
    decompose=_div_grad_body,
    decomposes_to=("Div", "Mul", "Neg", "ReduceSum"),
    cases=_div_grad_cases,
)

OPS = (broadcast_gradient_args, div_grad)
