"""Gelu with the normal distribution or with the tanh approximation of it, with and without bias, and the gradients.

ONNX has one operator for both since opset 20; ONNX Runtime has several of its own and the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase, broadcast_shapes, same_as
from minbuild.ops.core.elementwise import (
    LONG,
    Cases,
    computing,
    gradient_cases,
    gradient_kernel_of,
    gradient_op,
    kernel_of,
    lower_to,
    unary,
    unary_cases,
)
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

gelu_kernel = kernel_of("gelu", features=LONG)
gelu_grad_kernel = gradient_kernel_of("gelu_grad", features=LONG)
fast_gelu_kernel = kernel_of("fast_gelu", features=LONG)
fast_gelu_grad_kernel = gradient_kernel_of("fast_gelu_grad", features=LONG)

_LINEAR, _CUBIC = math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715
# At infinity both formulas multiply it by zero.
_FAR = np.array([0.0, -0.0, 1.0, -1.0, 12.0, -12.0, 100.0, -100.0, np.nan])
_CASES: Cases = unary_cases(4, special=_FAR)


def _clear(x: np.ndarray) -> np.ndarray:
    """Errors are measured by the largest gradient: a single one should not be where it vanishes."""
    return np.abs(x) * 3 if x.size == 1 else x * 3


def _below(x: np.ndarray) -> np.ndarray:
    """The probability that a normal variable is below x."""
    return 0.5 + 0.5 * np.reshape([math.erf(v / math.sqrt(2)) for v in x.ravel()], x.shape)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * _below(x)


def _gelu_grad(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    return dy * (_below(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def _fast_gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(_LINEAR * x + _CUBIC * x**3))


def _fast_gelu_grad(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    t = np.tanh(_LINEAR * x + _CUBIC * x**3)
    return dy / 2 * (1 + t + x * (1 - t * t) * (_LINEAR + 3 * _CUBIC * x**2))


def _gelu_slope(b: GraphBuilder, x: Value) -> Value:
    """P(x) + x p(x) with p the normal distribution and P its integral"""
    half = b.constant(0.5)
    below = half + half * b.add("Erf", x * math.sqrt(0.5))
    power = (x * x * -0.5).exp()
    return below + x * power * (1 / math.sqrt(2 * math.pi))


def _fast_gelu_slope(b: GraphBuilder, x: Value) -> Value:
    """(1 + t + x (1 - t^2) (linear + 3 cubic x^2)) / 2 with t the hyperbolic tangent"""
    square, one = x * x, b.constant(1)
    linear, cubic = b.constant(_LINEAR), b.constant(_CUBIC)
    inner = x * (linear + square * cubic)
    t = inner.tanh()
    steep = linear + square * (3 * _CUBIC)
    bent = x * steep * (one - t * t)
    return (one + t + bent) * 0.5


def _approximates(attributes: Mapping[str, Any]) -> bool:
    return attributes.get("approximate", "none") == "tanh"


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return lower_to(fast_gelu_kernel if _approximates(ctx.attributes) else gelu_kernel)(ctx)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return np.asarray(_fast_gelu(x) if _approximates(attributes) else _gelu(x))


def _gradient(b: GradientBuilder) -> Results:
    op = "FastGeluGrad" if _approximates(b.ctx.attributes) else "GeluGrad"
    return b.microsoft(op, b.dy[0], b.x[0])


onnx_gelu = Op(
    "Gelu",
    since=(20,),
    infer=same_as(0),
    reference=_reference,
    lower=_lower,
    kernels=(fast_gelu_kernel, gelu_kernel),
    in_place=((0, 0),),
    inexpensive=True,
    cases=unary_cases(4, ({}, {"approximate": "tanh"}, {"approximate": "none"}), special=_FAR),
    gradient=_gradient,
)
gelu = replace(
    unary("Gelu", gelu_kernel, computing(_gelu), _CASES, _gradient, since=(1,), domain=MICROSOFT),
    inexpensive=True,
)
gelu_grad = gradient_op(
    "GeluGrad",
    gelu_grad_kernel,
    computing(_gelu_grad),
    gradient_cases(6, saved=_clear),
    slope=_gelu_slope,
)
fast_gelu_grad = gradient_op(
    "FastGeluGrad",
    fast_gelu_grad_kernel,
    computing(_fast_gelu_grad),
    gradient_cases(6, saved=_clear),
    slope=_fast_gelu_slope,
)


# ------------------------------------------------------------------------------------------------- with bias


def _biased(function: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    def reference(attributes: Mapping[str, Any], x: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        return function(x if bias is None else x + bias)

    return reference


def _biased_grad(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def reference(
        attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray, bias: np.ndarray
    ) -> np.ndarray:
        return function(dy, x + bias)

    return reference


def _fast_body(b: GraphBuilder) -> Results:
    return b.microsoft("FastGelu", b.x[0] + b.x[1]) if b.has(1) else None


def _gradient_body(op: str) -> Callable[[GraphBuilder], Results]:
    return lambda b: b.microsoft(op, b.x[0], b.x[1] + b.x[2])


def _bias_gradient(op: str) -> Callable[[GradientBuilder], Results]:
    """Of input and bias; the bias was added to every row."""

    def gradient(b: GradientBuilder) -> Results:
        dx = b.microsoft(op, b.dy[0], b.x[0], b.x[1])
        made = broadcast_shapes(b.ctx.shape(0), b.ctx.shape(1))
        return dx, b.summed_to(dx, made, 1)

    return gradient


def _fast_gradient(b: GradientBuilder) -> Results:
    if b.has(1):
        return _bias_gradient("BiasFastGeluGrad_dX")(b)
    return b.microsoft("FastGeluGrad", b.dy[0], b.x[0])


def _bias_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((5,), (3, 5), (1, 7), (2, 3, 8)):
        bias = random.standard_normal(shape[-1:])
        yield TestCase(f"bias for {list(shape)}", (random.standard_normal(shape) * 2, bias), ulps=4)


def _fast_cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from _CASES(random)
    yield from _bias_cases(random)


def _bias_grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for case in _bias_cases(random):
        x, bias = case.inputs
        assert x is not None
        yield TestCase(case.name, (random.standard_normal(x.shape), x, bias), ulps=8)


fast_gelu = Op(
    "FastGelu",
    domain=MICROSOFT,
    infer=same_as(0),
    reference=_biased(_fast_gelu),
    lower=lower_to(fast_gelu_kernel),
    kernels=(fast_gelu_kernel,),
    in_place=((0, 0),),
    inexpensive=True,
    decompose=_fast_body,
    decomposes_to=("Add",),
    cases=_fast_cases,
    gradient=_fast_gradient,
)
bias_gelu = Op(
    "BiasGelu",
    domain=MICROSOFT,
    reference=_biased(_gelu),
    decompose=lambda b: b.microsoft("Gelu", b.x[0] + b.x[1]),
    decomposes_to=("Add", "com.microsoft:Gelu"),
    cases=_bias_cases,
    gradient=_bias_gradient("BiasGeluGrad_dX"),
)
bias_gelu_grad = Op(
    "BiasGeluGrad_dX",
    domain=MICROSOFT,
    reference=_biased_grad(_gelu_grad),
    decompose=_gradient_body("GeluGrad"),
    decomposes_to=("Add", "com.microsoft:GeluGrad"),
    cases=_bias_grad_cases,
)
bias_fast_gelu_grad = Op(
    "BiasFastGeluGrad_dX",
    domain=MICROSOFT,
    reference=_biased_grad(_fast_gelu_grad),
    decompose=_gradient_body("FastGeluGrad"),
    decomposes_to=("Add", "com.microsoft:FastGeluGrad"),
    cases=_bias_grad_cases,
)

KERNELS = (gelu_kernel, gelu_grad_kernel, fast_gelu_kernel, fast_gelu_grad_kernel)
OPS = (onnx_gelu, gelu, gelu_grad, fast_gelu_grad, fast_gelu, bias_gelu, bias_gelu_grad, bias_fast_gelu_grad)
