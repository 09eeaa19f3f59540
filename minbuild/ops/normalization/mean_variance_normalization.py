"""MeanVarianceNormalization and LpNormalization: made of reductions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import Op, TestCase, normalized_axes
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.reduction.composite_reductions import nonzero
from minbuild.ops.reduction.reduction_axes import distinct

_LEAST = 1e-9  # what ONNX adds to standard deviations


def _axes(b: GraphBuilder) -> tuple[int, ...]:
    return normalized_axes(b.ctx.attribute("axes", (0, 2, 3)), b.ctx.rank())


def _deviation(b: GraphBuilder) -> tuple[Value, Value]:
    """x - mean, and its root mean square. ONNX writes the variance as a difference of squares, in which all digits
    may cancel."""
    away = b.x[0] - b.x[0].mean(_axes(b))
    return away, (away * away).mean(_axes(b)).sqrt()


def _mean_variance_body(b: GraphBuilder) -> Results:
    away, deviation = _deviation(b)
    return away / (deviation + _LEAST)


def _mean_variance_gradient(b: GradientBuilder) -> Results:
    """With d = x - mean and s its root mean square: g = dy / s' - d mean(dy d) / (s s'^2); dx = g - mean(g)."""
    away, deviation = _deviation(b)
    divisor = deviation + _LEAST
    along = (b.dy[0] * b.y[0]).mean(_axes(b)) / divisor
    along = along / nonzero(b, deviation, b.ctx.element())
    each = b.dy[0] / divisor - away * along
    return each - each.mean(_axes(b))


def _mean_variance_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    axes = tuple(attributes.get("axes", (0, 2, 3)))
    away = x - x.mean(axes, keepdims=True)
    return np.asarray(away / (np.sqrt((away**2).mean(axes, keepdims=True)) + _LEAST))


def _mean_variance_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axes in (
        ((2, 3, 4, 5), None),
        ((3, 4), (1,)),
        ((5, 4), (0,)),
        ((2, 3, 5), (-1, 1)),
        ((2, 3, 5), (1,)),
    ):
        attributes = {} if axes is None else {"axes": axes}
        yield TestCase(f"{list(shape)} over {axes}", (random.standard_normal(shape),), attributes, ulps=32)
    yield TestCase("all the same", (np.full((2, 8), 3.0),), {"axes": (1,)}, smooth=False)


mean_variance_normalization = Op(
    "MeanVarianceNormalization",
    since=(9, 13),
    reference=_mean_variance_reference,
    decompose=_mean_variance_body,
    decomposes_to=("Add", "Div", "Mul", "ReduceMean", "Sqrt", "Sub"),
    cases=_mean_variance_cases,
    gradient=_mean_variance_gradient,
)

# --------------------------------------------------------------------------------------------- LpNormalization


def _length(b: GraphBuilder) -> Value:
    """The norms, with 1 where all elements are 0: the result is 0 there."""
    name = "ReduceL1" if b.ctx.attribute("p", 2) == 1 else "ReduceL2"
    return nonzero(b, b.reduce(name, b.x[0], (b.ctx.axis(-1),)), b.ctx.element())


def _lp_body(b: GraphBuilder) -> Results:
    return b.x[0] / _length(b)


def _lp_gradient(b: GradientBuilder) -> Results:
    """(dy - direction sum(dy y)) / norm, where the norm grows along y, or along the signs of x."""
    direction = b.x[0].sign() if b.ctx.attribute("p", 2) == 1 else b.y[0]
    along = (b.dy[0] * b.y[0]).sum((b.ctx.axis(-1),))
    return (b.dy[0] - direction * along) / _length(b)


def _lp_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    axis, power = int(attributes.get("axis", -1)), int(attributes.get("p", 2))
    norm = (np.abs(x) ** power).sum(axis, keepdims=True) ** (1 / power)
    return np.asarray(x / np.where(norm == 0, 1, norm))


def _lp_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for power in (1, 2):
        for shape, axis in (((7,), 0), ((3, 5), -1), ((3, 5), 0), ((2, 3, 4), 1), ((1, 1), 1)):
            attributes = {"axis": axis, "p": power}
            yield TestCase(
                f"{list(shape)} axis {axis} p {power}", (distinct(random, shape),), attributes, ulps=16
            )
        x = np.array([[0.0, 0.0], [3.0, -4.0]])
        yield TestCase(f"all zero, p {power}", (x,), {"p": power}, smooth=False)


lp_normalization = Op(
    "LpNormalization",
    since=(1, 22),
    reference=_lp_reference,
    decompose=_lp_body,
    decomposes_to=("Add", "Cast", "Div", "Equal", "ReduceL1", "ReduceL2"),
    cases=_lp_cases,
    gradient=_lp_gradient,
)

OPS = (mean_variance_normalization, lp_normalization)
