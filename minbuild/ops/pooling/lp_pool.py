"""LpPool and GlobalLpPool: the p-norm of what a window, or the whole image, holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.convolution.sliding_window import axes, explicit_pads, padding_of, pool_axes, taps_of
from minbuild.ops.core.definition import Op, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.pooling.average_pool import VARIANTS


def _powers(b: GraphBuilder, p: int) -> Value:
    """|x|^p"""
    if p == 2:
        return b.x[0] * b.x[0]
    size = b.x[0].abs()
    return size if p == 1 else size**p


def _root(b: GraphBuilder, total: Value, p: int) -> Value:
    if p == 1:
        return b.add("Identity", total)
    return total.sqrt() if p == 2 else total ** (1 / p)


def _slopes(b: GradientBuilder, p: int) -> tuple[Value, Value]:
    """dy/y^(p-1), and x |x|^(p-2): the gradient is their product, the first spread over what each window saw.
    Windows of nothing but zeros pass no gradient on."""
    if p == 1:
        return b.dy[0], b.x[0].sign()
    zero = b.constant(0)
    power = b.y[0] if p == 2 else b.y[0] ** (p - 1)
    divisor = b.where(power.equal(zero), 1, power)
    flow = b.dy[0] / divisor
    if p == 2:
        return flow, b.x[0]
    return flow, b.x[0].sign() * b.x[0].abs() ** (p - 1)


def _pool_body(b: GraphBuilder) -> Results:
    p = int(b.ctx.attribute("p", 2))
    attributes = {name: value for name, value in b.ctx.attributes.items() if name != "p"}
    return _root(b, b.add("SumPool", _powers(b, p), domain="minbuild", **attributes), p)


def _pool_gradient(b: GradientBuilder) -> Results:
    attributes = explicit_pads(b.ctx.attributes, pool_axes(b.ctx, b.ctx.shape()))
    flow, slope = _slopes(b, int(attributes.pop("p", 2)))
    spread = b.add("SumPoolGrad", flow, b.x[0].shape(), domain="minbuild", **attributes)
    return spread * slope


def _pool_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    p = attributes.get("p", 2)
    window = axes(attributes, x.shape[2:], tuple(attributes["kernel_shape"]))
    padded = np.pad(np.abs(x) ** p, padding_of(window))
    return np.asarray(np.sum([padded[field] for _, field in taps_of(window)], 0) ** (1 / p))


def _pool_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for index, (shape, given) in enumerate(VARIANTS):
        attributes = {**given, "p": index % 4 or 2}
        # A window that sees nothing but padding has no slope.
        smooth = _pool_reference(attributes, np.ones(shape)).all()
        x = random.standard_normal(shape)
        yield TestCase(f"{list(shape)} {attributes}", (x,), attributes, ulps=32, smooth=bool(smooth))


lp_pool = Op(
    "LpPool",
    since=(1, 2, 11, 18, 22),
    decompose=_pool_body,
    decomposes_to=("Abs", "Mul", "Pow", "Sqrt", "minbuild:SumPool"),
    reference=_pool_reference,
    gradient=_pool_gradient,
    cases=_pool_cases,
)


def _global_body(b: GraphBuilder) -> Results:
    p, axes = int(b.ctx.attribute("p", 2)), range(2, b.ctx.rank())
    return _root(b, _powers(b, p).sum(axes), p)


def _global_gradient(b: GradientBuilder) -> Results:
    flow, slope = _slopes(b, int(b.ctx.attribute("p", 2)))
    return slope * flow


def _global_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    p = attributes.get("p", 2)
    return np.asarray((np.abs(x) ** p).sum(tuple(range(2, x.ndim)), keepdims=True) ** (1 / p))


def _global_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((1, 1, 1, 1), (2, 3, 5), (3, 4, 7, 7), (2, 3, 2, 3, 4)):
        for p in (1, 2, 3):
            yield TestCase(f"{list(shape)} p {p}", (random.standard_normal(shape),), {"p": p}, ulps=32)


global_lp_pool = Op(
    "GlobalLpPool",
    since=(1, 2, 22),
    decompose=_global_body,
    decomposes_to=("Abs", "Mul", "Pow", "ReduceSum", "Sqrt"),
    reference=_global_reference,
    gradient=_global_gradient,
    cases=_global_cases,
)

OPS = (lp_pool, global_lp_pool)
