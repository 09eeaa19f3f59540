"""Functions of one element: Neg, Abs, Sign, Sqrt, Reciprocal, Exp, Log, Erf."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from minbuild.ops.core.definition import (
    FLOATS,
    INTEGERS,
    SIGNED,
    UNSIGNED,
    KernelCall,
    Op,
    OpContext,
    TestCase,
    same_as,
    storage_type,
)
from minbuild.ops.core.elementwise import (
    Cases,
    computing,
    kernel_of,
    lower_to,
    unary,
    unary_cases,
    zero_gradient,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results
from minbuild.ops.movement import copy as _copy

neg_kernel = kernel_of("neg", types=FLOATS + SIGNED)
abs_kernel = kernel_of("abs", types=FLOATS + SIGNED)
sign_kernel = kernel_of("sign", types=FLOATS + INTEGERS)
sqrt_kernel = kernel_of("sqrt")
reciprocal_kernel = kernel_of("reciprocal")
exp_kernel = kernel_of("exp")
log_kernel = kernel_of("log")
erf_kernel = kernel_of("erf")


def _lower_abs(ctx: OpContext) -> Sequence[KernelCall]:
    if ctx.element() in UNSIGNED:
        return (_copy.copy_kernel.call(ctx.result(), ctx.name(0), types=(storage_type(ctx.element()),)),)
    return lower_to(abs_kernel)(ctx)


def _with_integers(cases: Cases, kinds: Sequence[str]) -> Cases:
    def more(random: np.random.Generator) -> Iterable[TestCase]:
        yield from cases(random)
        for kind in kinds:
            bounds = np.iinfo(kind)
            x = random.integers(bounds.min, bounds.max, (3, 7), dtype=kind, endpoint=True)
            x.flat[:3] = (bounds.min, bounds.max, 0)
            yield TestCase(kind, (x,), ulps=0)

    return more


_SIGNED = ("int8", "int16", "int32", "int64")
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_EITHER = unary_cases(0)


def _erf(x: np.ndarray) -> np.ndarray:
    if x.dtype == object:
        raise TypeError("no function of dimensions")
    return np.reshape([math.erf(v) for v in x.ravel()], x.shape)


def _abs_gradient(b: GradientBuilder) -> Results:
    return b.dy[0] * b.x[0].sign()


def _sqrt_gradient(b: GradientBuilder) -> Results:
    """dy / 2 / y"""
    return b.dy[0] * 0.5 / b.y[0]


def _reciprocal_gradient(b: GradientBuilder) -> Results:
    """-dy * y^2"""
    return b.dy[0] * -(b.y[0] * b.y[0])


def _erf_gradient(b: GradientBuilder) -> Results:
    """dy * 2 / sqrt(pi) * e^(-x^2)"""
    bell = (-(b.x[0] * b.x[0])).exp()
    return b.dy[0] * (bell * (2 / math.sqrt(math.pi)))


def _positive(x: np.ndarray) -> np.ndarray:
    return np.exp(x)


neg = unary(
    "Neg",
    neg_kernel,
    computing(np.negative),
    _with_integers(_EITHER, _SIGNED),
    lambda b: -b.dy[0],
)
absolute = Op(
    "Abs",
    since=(6, 13),
    infer=same_as(0),
    reference=computing(np.abs),
    lower=_lower_abs,
    kernels=(abs_kernel, _copy.copy_kernel),
    in_place=((0, 0),),
    cases=_with_integers(_EITHER, _SIGNED + _UNSIGNED),
    gradient=_abs_gradient,
)
sign = unary(
    "Sign",
    sign_kernel,
    computing(np.sign),
    _with_integers(_EITHER, _SIGNED + _UNSIGNED),
    zero_gradient,
    since=(9, 13),
)
sqrt = unary(
    "Sqrt",
    sqrt_kernel,
    computing(np.sqrt),
    unary_cases(1, inputs=_positive),
    _sqrt_gradient,
)
reciprocal = unary(
    "Reciprocal",
    reciprocal_kernel,
    computing(lambda x: 1 / x),
    unary_cases(1, inputs=lambda x: np.sign(x) * np.exp(x)),
    _reciprocal_gradient,
)
exp = unary(
    "Exp",
    exp_kernel,
    computing(np.exp),
    unary_cases(2, special=np.array([0.0, -0.0, 1.0, -1.0, 30.0, -700.0, np.inf, -np.inf, np.nan])),
    lambda b: b.dy[0] * b.y[0],
)
log = unary(
    "Log",
    log_kernel,
    computing(np.log),
    unary_cases(2, inputs=_positive),
    lambda b: b.dy[0] / b.x[0],
)
erf = unary("Erf", erf_kernel, computing(_erf), unary_cases(2), _erf_gradient, since=(9, 13))

KERNELS = (
    neg_kernel,
    abs_kernel,
    sign_kernel,
    sqrt_kernel,
    reciprocal_kernel,
    exp_kernel,
    log_kernel,
    erf_kernel,
)
OPS = (neg, absolute, sign, sqrt, reciprocal, exp, log, erf)
