"""Swish, QuickGelu (the same with another default), SwiGLU, and the gradient of the first two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.channel_slices import elementwise_channels
from minbuild.ops.core.definition import Op, TestCase, first_input, same_as
from minbuild.ops.core.elementwise import (
    gradient_cases,
    gradient_kernel_of,
    gradient_op,
    kernel_of,
    lower_to,
    numbers,
    unary_cases,
)
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.pattern import Match, Replacement, Rewrite, RewritingOp
from minbuild.ops.core.value import Results, Value

gated_kernel = kernel_of("gated", "a", "b", params=("alpha:float",))
swish_grad_kernel = gradient_kernel_of("swish_grad", params=("alpha:float",))

_SWISH, _QUICK = ("alpha", 1.0), ("alpha", float(np.float32(1.702)))
_FAR = np.array(
    [0.0, -0.0, 1.0, -1.0, 30.0, -30.0, 700.0, -700.0, np.nan]
)  # at infinity it is multiplied by 0
_ALPHAS: tuple[Mapping[str, Any], ...] = ({}, {"alpha": 0.5}, {"alpha": -2.0})


def _sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _swish(default: tuple[str, float]) -> Callable[..., np.ndarray]:
    def reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
        return np.asarray(x * _sigmoid(attributes.get(*default) * x))

    return reference


def _swish_grad(attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    u = attributes.get(*_QUICK) * x
    s = _sigmoid(u)
    return np.asarray(dy * s * (1 + u * (1 - s)))


def _slope(b: GraphBuilder, x: Value) -> Value:
    """s (1 + u (1 - s)) with u = alpha x and s the sigmoid of it"""
    u, one = x * float(b.ctx.attribute(*_QUICK)), b.constant(1)
    s = u.sigmoid()
    return s * (one + u * (one - s))


def _fused(match: Match) -> Replacement:
    return Replacement(f"{MICROSOFT}:QuickGelu", ("x",), {"alpha": 1.0})


def _op(name: str, domain: str, default: tuple[str, float], *rewrites: Rewrite) -> Op:
    def gradient(b: GradientBuilder) -> Results:
        alpha = float(b.ctx.attribute(*default))
        return b.microsoft("QuickGeluGrad", b.dy[0], b.x[0], alpha=alpha)

    return RewritingOp(
        name,
        domain=domain,
        since=(1,) if domain else (24,),
        infer=same_as(0),
        reference=_swish(default),
        lower=lower_to(gated_kernel, numbers(default), (0, 0)),
        kernels=(gated_kernel,),
        in_place=((0, 0),),
        inexpensive=True,
        batched_inputs=first_input,
        channels=elementwise_channels,
        cases=unary_cases(4, _ALPHAS, special=_FAR),
        gradient=gradient,
        rewrites=rewrites,
    )


swish = _op("Swish", "", _SWISH)
# As two calls, both the argument and its sigmoid are there at once.
_PRODUCT = Rewrite(("Mul", "x", ("Sigmoid", "x")), _fused, shared=True)
quick_gelu = _op("QuickGelu", MICROSOFT, _QUICK, _PRODUCT)
quick_gelu_grad = gradient_op(
    "QuickGeluGrad",
    swish_grad_kernel,
    _swish_grad,
    gradient_cases(6, _ALPHAS),
    params=numbers(_QUICK),
    slope=_slope,
)


def _gate(b: GraphBuilder) -> Value:
    return b.add("Swish", b.x[0], alpha=float(b.ctx.attribute(*_SWISH)))


def _swiglu(attributes: Mapping[str, Any], gate: np.ndarray, x: np.ndarray) -> np.ndarray:
    return _swish(_SWISH)(attributes, gate) * x


def _swiglu_gradient(b: GradientBuilder) -> Results:
    alpha = float(b.ctx.attribute(*_SWISH))
    through = b.dy[0] * b.x[1]
    dgate = b.microsoft("QuickGeluGrad", through, b.x[0], alpha=alpha)
    return (dgate, b.dy[0] * _gate(b))


def _swiglu_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for attributes in _ALPHAS:
        for shape in ((), (1,), (3, 5), (2, 3, 7)):
            inputs = random.standard_normal(shape) * 2, random.standard_normal(shape)
            yield TestCase(f"shape {list(shape)}, {dict(attributes)}", inputs, attributes, ulps=4)


swiglu = Op(
    "SwiGLU",
    since=(28,),
    reference=_swiglu,
    decompose=lambda b: _gate(b) * b.x[1],
    decomposes_to=("Mul", "Swish"),
    cases=_swiglu_cases,
    gradient=_swiglu_gradient,
)

KERNELS = (gated_kernel, swish_grad_kernel)
OPS = (swish, quick_gelu, quick_gelu_grad, swiglu)
