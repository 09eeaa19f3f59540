"""Softplus, Softsign, Mish and their gradients."""

from __future__ import annotations

import numpy as np

from minbuild.ops.activation import swish as _swish
from minbuild.ops.core.definition import Op
from minbuild.ops.core.elementwise import (
    computing,
    gradient_cases,
    gradient_kernel_of,
    gradient_op,
    kernel_of,
    unary,
    unary_cases,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

softplus_kernel = kernel_of("softplus")
mish_kernel = kernel_of("mish")
mish_grad_kernel = gradient_kernel_of("mish_grad")

_FAR = np.array([0.0, -0.0, 1.0, -1.0, 30.0, -30.0, np.inf, -np.inf, np.nan])


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


def _mish_grad(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    t = np.tanh(_softplus(x))
    return dy * (t + x * (1 - t * t) / (1 + np.exp(-x)))


def _mish_slope(b: GraphBuilder, x: Value) -> Value:
    """t + x (1 - t^2) sigmoid(x) with t the hyperbolic tangent of Softplus"""
    t = b.add("Softplus", x).tanh()
    steep = (1 - t * t) * x.sigmoid()
    return t + x * steep


softplus = unary(
    "Softplus",
    softplus_kernel,
    computing(_softplus),
    unary_cases(3, special=_FAR),
    lambda b: b.add("SoftplusGrad", b.dy[0], b.x[0], domain="minbuild"),
    since=(1, 22),
)
softplus_grad = gradient_op(
    "SoftplusGrad",
    _swish.gated_kernel,
    computing(lambda dy, x: dy / (1 + np.exp(-x))),
    gradient_cases(4),
    domain="minbuild",
    params=lambda ctx: (1.0,),
    slope=lambda b, x: x.sigmoid(),
)
mish = unary(
    "Mish",
    mish_kernel,
    computing(lambda x: x * np.tanh(_softplus(x))),
    unary_cases(4, special=_FAR),
    lambda b: b.add("MishGrad", b.dy[0], b.x[0], domain="minbuild"),
    since=(18, 22),
)
mish_grad = gradient_op(
    "MishGrad",
    mish_grad_kernel,
    computing(_mish_grad),
    gradient_cases(4),
    domain="minbuild",
    slope=_mish_slope,
)


def _softsign_body(b: GraphBuilder) -> Results:
    return b.x[0] / (b.x[0].abs() + 1)


def _softsign_gradient(b: GradientBuilder) -> Results:
    """dy / (1 + |x|)^2"""
    divisor = b.x[0].abs() + 1
    return b.dy[0] / (divisor * divisor)


softsign = Op(
    "Softsign",
    since=(1, 22),
    reference=computing(lambda x: x / (1 + np.abs(x))),
    decompose=_softsign_body,
    decomposes_to=("Abs", "Add", "Div"),
    cases=unary_cases(2, special=_FAR),
    gradient=_softsign_gradient,
)

KERNELS = (softplus_kernel, mish_kernel, mish_grad_kernel)
OPS = (softplus, softplus_grad, mish, mish_grad, softsign)
