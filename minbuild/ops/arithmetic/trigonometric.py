"""Sin, Cos, Tan, Asin, Acos, Atan."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from minbuild.ops.core.definition import TestCase
from minbuild.ops.core.elementwise import Cases, computing, kernel_of, unary, unary_cases
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results, Value

sin_kernel = kernel_of("sin")
cos_kernel = kernel_of("cos")
tan_kernel = kernel_of("tan")
asin_kernel = kernel_of("asin")
acos_kernel = kernel_of("acos")
atan_kernel = kernel_of("atan")

_SPECIAL = np.array([0.0, -0.0, 0.75, -0.75, 3.0, 100.0, np.inf, -np.inf, np.nan])
_NARROW = np.array([0.0, -0.0, 1.0, -1.0, 1e-9, 1.5, -1.5, np.inf, -np.inf, np.nan])
_ANGLES: Cases = unary_cases(3, special=_SPECIAL)


def _wave_cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from _ANGLES(random)
    yield TestCase(
        "many turns", (random.uniform(-1e4, 1e4, 500).astype(np.float32).astype(np.float64),), ulps=3
    )


def _inside(x: np.ndarray) -> np.ndarray:
    """Strictly between -1 and 1, far enough from both for finite differences."""
    return np.tanh(x) * 0.9


def _sin_gradient(b: GradientBuilder) -> Results:
    return b.dy[0] * b.x[0].cos()


def _cos_gradient(b: GradientBuilder) -> Results:
    return b.dy[0] * -b.x[0].sin()


def _tan_gradient(b: GradientBuilder) -> Results:
    """dy * (1 + y^2)"""
    return b.dy[0] * (b.y[0] * b.y[0] + 1)


def _arc_gradient(b: GradientBuilder) -> Value:
    """dy / sqrt(1 - x^2)"""
    square = b.x[0] * b.x[0]
    return b.dy[0] / (1 - square).sqrt()


def _atan_gradient(b: GradientBuilder) -> Results:
    """dy / (1 + x^2)"""
    return b.dy[0] / (b.x[0] * b.x[0] + 1)


sin = unary("Sin", sin_kernel, computing(np.sin), _wave_cases, _sin_gradient, since=(7, 22))
cos = unary("Cos", cos_kernel, computing(np.cos), _wave_cases, _cos_gradient, since=(7, 22))
tan = unary(
    "Tan",
    tan_kernel,
    computing(np.tan),
    unary_cases(4, inputs=lambda x: np.tanh(x) * 1.2, special=_SPECIAL),
    _tan_gradient,
    since=(7, 22),
)
asin = unary(
    "Asin",
    asin_kernel,
    computing(np.arcsin),
    unary_cases(3, inputs=_inside, special=_NARROW),
    lambda b: _arc_gradient(b),
    since=(7, 22),
)
acos = unary(
    "Acos",
    acos_kernel,
    computing(np.arccos),
    unary_cases(3, inputs=_inside, special=_NARROW),
    lambda b: -_arc_gradient(b),
    since=(7, 22),
)
atan = unary("Atan", atan_kernel, computing(np.arctan), unary_cases(3), _atan_gradient, since=(7, 22))

KERNELS = (sin_kernel, cos_kernel, tan_kernel, asin_kernel, acos_kernel, atan_kernel)
OPS = (sin, cos, tan, asin, acos, atan)
