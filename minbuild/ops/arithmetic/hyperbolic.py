"""Sinh, Cosh, Asinh, Acosh, Atanh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from minbuild.ops.core.definition import TestCase
from minbuild.ops.core.elementwise import Cases, computing, kernel_of, unary, unary_cases
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results, Value

sinh_kernel = kernel_of("sinh")
cosh_kernel = kernel_of("cosh")
asinh_kernel = kernel_of("asinh")
acosh_kernel = kernel_of("acosh")
atanh_kernel = kernel_of("atanh")

_SPECIAL = np.array([0.0, -0.0, 1e-9, 1.0, -1.0, np.inf, -np.inf, np.nan])


def _with_magnitudes(cases: Cases, magnitudes: Sequence[float], ulps: float) -> Cases:
    """Each magnitude is a case of its own, because errors are measured by the largest result."""

    def more(random: np.random.Generator) -> Iterable[TestCase]:
        yield from cases(random)
        for size in magnitudes:
            yield TestCase(f"about {size}", (random.uniform(0.5, 1, 50) * size,), ulps=ulps, smooth=False)

    return more


def _square(b: GradientBuilder) -> Value:
    return b.x[0] * b.x[0]


def _over_root(b: GradientBuilder, square_and_one: Value) -> Results:
    return b.dy[0] / square_and_one.sqrt()


def _asinh_gradient(b: GradientBuilder) -> Results:
    """dy / sqrt(x^2 + 1)"""
    return _over_root(b, _square(b) + 1)


def _acosh_gradient(b: GradientBuilder) -> Results:
    """dy / sqrt(x^2 - 1)"""
    return _over_root(b, _square(b) - 1)


def _atanh_gradient(b: GradientBuilder) -> Results:
    """dy / (1 - x^2)"""
    return b.dy[0] / (1 - _square(b))


sinh = unary(
    "Sinh",
    sinh_kernel,
    computing(np.sinh),
    _with_magnitudes(unary_cases(4, special=_SPECIAL), (1e-6, 0.01, 1.2, 20, 88), 8),
    lambda b: b.dy[0] * b.x[0].cosh(),
    since=(9, 22),
)
cosh = unary(
    "Cosh",
    cosh_kernel,
    computing(np.cosh),
    _with_magnitudes(unary_cases(4, special=_SPECIAL), (20, 88), 8),
    lambda b: b.dy[0] * b.x[0].sinh(),
    since=(9, 22),
)
asinh = unary(
    "Asinh",
    asinh_kernel,
    computing(np.arcsinh),
    _with_magnitudes(unary_cases(4), (1e-6, 0.01, 1e4, 1e12, 1e30), 4),
    _asinh_gradient,
    since=(9, 22),
)
acosh = unary(
    "Acosh",
    acosh_kernel,
    computing(np.arccosh),
    _with_magnitudes(unary_cases(4, inputs=lambda x: 1.1 + np.abs(x)), (1e4, 1e12, 1e30), 4),
    _acosh_gradient,
    since=(9, 22),
)
atanh = unary(
    "Atanh",
    atanh_kernel,
    computing(np.arctanh),
    _with_magnitudes(unary_cases(4, inputs=lambda x: np.tanh(x) * 0.9), (1e-6, 0.01), 4),
    _atanh_gradient,
    since=(9, 22),
)

KERNELS = (sinh_kernel, cosh_kernel, asinh_kernel, acosh_kernel, atanh_kernel)
OPS = (sinh, cosh, asinh, acosh, atanh)
