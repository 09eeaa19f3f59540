"""MeanVarianceNormalization and LpNormalization: made of reductions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import Op, TestCase, normalized_axes
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.reduction.norms import nonzero
from minbuild.ops.reduction.reducing import apart

_LEAST = 1e-9  # what ONNX adds to standard deviations


def _axes(b: GraphBuilder) -> tuple[int, ...]:
    return normalized_axes(b.ctx.attribute("axes", (0, 2, 3)), b.ctx.rank())


def _deviation(b: GraphBuilder) -> tuple[str, str]:
    """x - mean, and its root mean square. ONNX writes the variance as a difference of squares, in which all digits
    may cancel."""
    away = b.add("Sub", b.x[0], b.reduce("ReduceMean", b.x[0], _axes(b)))
    return away, b.add("Sqrt", b.reduce("ReduceMean", b.add("Mul", away, away), _axes(b)))


def _mean_variance_body(b: GraphBuilder) -> Sequence[str]:
    away, deviation = _deviation(b)
    return (b.add("Div", away, b.add("Add", deviation, b.constant(_LEAST))),)


def _mean_variance_gradient(b: GradientBuilder) -> Sequence[str]:
    """With d = x - mean and s its root mean square: g = dy / s' - d mean(dy d) / (s s'^2); dx = g - mean(g)."""
    away, deviation = _deviation(b)
    divisor = b.add("Add", deviation, b.constant(_LEAST))
    along = b.add("Div", b.reduce("ReduceMean", b.add("Mul", b.dy[0], b.y[0]), _axes(b)), divisor)
    along = b.add("Div", along, nonzero(b, deviation, b.ctx.element()))
    each = b.add("Sub", b.add("Div", b.dy[0], divisor), b.add("Mul", away, along))
    return b.each(b.add("Sub", each, b.reduce("ReduceMean", each, _axes(b))))


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


def _length(b: GraphBuilder) -> str:
    """The norms, with 1 where all elements are 0: the answer is 0 there."""
    name = "ReduceL1" if b.ctx.attribute("p", 2) == 1 else "ReduceL2"
    return nonzero(b, b.reduce(name, b.x[0], (b.ctx.axis(-1),)), b.ctx.element())


def _lp_body(b: GraphBuilder) -> Sequence[str]:
    return (b.add("Div", b.x[0], _length(b)),)


def _lp_gradient(b: GradientBuilder) -> Sequence[str]:
    """(dy - direction sum(dy y)) / norm, where the norm grows along y, or along the signs of x."""
    direction = b.add("Sign", b.x[0]) if b.ctx.attribute("p", 2) == 1 else b.y[0]
    along = b.reduce("ReduceSum", b.add("Mul", b.dy[0], b.y[0]), (b.ctx.axis(-1),))
    return b.each(b.add("Div", b.add("Sub", b.dy[0], b.add("Mul", direction, along)), _length(b)))


def _lp_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    axis, power = int(attributes.get("axis", -1)), int(attributes.get("p", 2))
    norm = (np.abs(x) ** power).sum(axis, keepdims=True) ** (1 / power)
    return np.asarray(x / np.where(norm == 0, 1, norm))


def _lp_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for power in (1, 2):
        for shape, axis in (((7,), 0), ((3, 5), -1), ((3, 5), 0), ((2, 3, 4), 1), ((1, 1), 1)):
            attributes = {"axis": axis, "p": power}
            yield TestCase(
                f"{list(shape)} axis {axis} p {power}", (apart(random, shape),), attributes, ulps=16
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
