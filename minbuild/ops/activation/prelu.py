"""PRelu: a slope for negative numbers that is itself an input, broadcast to the first one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.broadcasting import AXES, FEATURES, WALK, call_binary
from minbuild.ops.core.definition import (
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    broadcast_shapes,
    same_as,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results


def _kernel(function: str) -> KernelFunction:
    slots = ("y:T=", "x:T", "slope:T", WALK)
    return KernelFunction(function, slots, params=AXES, types={"T": FLOATS}, features=FEATURES)


prelu_kernel = _kernel("prelu")
prelu_slope_kernel = _kernel("prelu_slope")


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    broadcast_shapes(ctx.shape(0), ctx.shape(1))
    return (TensorType(ctx.element(), ctx.shape()),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return (call_binary(prelu_kernel, ctx),)


def _lower_slope(ctx: OpContext) -> Sequence[KernelCall]:
    return (call_binary(prelu_slope_kernel, ctx),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray, slope: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(x < 0, slope * x, x))


def _slope_reference(attributes: Mapping[str, Any], x: np.ndarray, slope: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(x < 0, slope, np.ones_like(x)))


def _body(b: GraphBuilder) -> Results:
    """Integers have no kernel of their own."""
    if b.ctx.element().is_real:
        return None
    negative = b.x[0] < 0
    return b.where(negative, b.x[0] * b.x[1], b.x[0])


def _gradient(b: GradientBuilder) -> Results:
    """By x the slope where x is negative, else 1; by the slope x where x is negative."""
    x, slope = b.x
    dx = b.dy[0] * b.add("PReluSlope", x, slope, domain="minbuild") if 0 in b.requires_grad else None
    if 1 not in b.requires_grad:
        return dx
    negative = -(-x).relu()
    dslope = b.summed_to(b.dy[0] * negative, b.ctx.shape(0), 1)
    return (dx, dslope)


def _slope_parts(b: GraphBuilder) -> Results:
    return b.where(b.x[0] < 0, b.x[1], 1)


def _pairs(random: np.random.Generator) -> Iterable[TestCase]:
    for x, slope in (
        ((), ()), ((7,), (7,)), ((3, 5), (1,)), ((3, 5), ()), ((3, 5), (5,)), ((3, 5), (3, 1)),
        ((2, 3, 4, 5), (3, 1, 1)), ((2, 3, 4, 5), (2, 1, 4, 1)), ((1, 4, 3), (4, 1)),
    ):  # fmt: skip
        inputs = random.standard_normal(x), random.uniform(-0.5, 0.5, slope)
        yield TestCase(f"{list(x)} with {list(slope)}", inputs, ulps=1)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from _pairs(random)
    for kind in ("int32", "int64"):
        x, slope = random.integers(-9, 9, (3, 5)).astype(kind), random.integers(-3, 3, (5,)).astype(kind)
        yield TestCase(kind, (x, slope))


prelu = Op(
    "PRelu",
    since=(7, 9, 16),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(prelu_kernel,),
    in_place=((0, 0),),
    decompose=_body,
    decomposes_to=("Less", "Mul", "Where"),
    cases=_cases,
    gradient=_gradient,
)
prelu_slope = Op(
    "PReluSlope",
    domain="minbuild",
    infer=same_as(0),
    reference=_slope_reference,
    lower=_lower_slope,
    kernels=(prelu_slope_kernel,),
    in_place=((0, 0),),
    cases=_pairs,
    decompose_for_grad=_slope_parts,
)

KERNELS = (prelu_kernel, prelu_slope_kernel)
OPS = (prelu, prelu_slope)
