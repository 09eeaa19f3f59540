"""HardSigmoid, HardSwish and their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import itself
from minbuild.ops.core.elementwise import (
    computing,
    gradient_cases,
    gradient_kernel_of,
    gradient_op,
    kernel_of,
    numbers,
    unary,
    unary_cases,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

_ALPHA, _BETA = ("alpha", float(np.float32(0.2))), ("beta", 0.5)
_PARAMS = (f"{_ALPHA[0]}:float", f"{_BETA[0]}:float")
_ATTRIBUTES: tuple[Mapping[str, Any], ...] = ({}, {"alpha": 0.5, "beta": 0.25}, {"alpha": -1.0, "beta": 0.0})

hard_sigmoid_kernel = kernel_of("hard_sigmoid", params=_PARAMS)
hard_sigmoid_grad_kernel = gradient_kernel_of("hard_sigmoid_grad", params=_PARAMS)
hard_swish_kernel = kernel_of("hard_swish")
hard_swish_grad_kernel = gradient_kernel_of("hard_swish_grad")


def _line(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return attributes.get(*_ALPHA) * x + attributes.get(*_BETA)


def _hard_sigmoid(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return np.clip(_line(attributes, x), 0, 1)


def _hard_sigmoid_grad(attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    inner = _line(attributes, x)
    return np.asarray(np.where((inner > 0) & (inner < 1), attributes.get(*_ALPHA) * dy, 0))


def _hard_sigmoid_gradient(b: GradientBuilder) -> Results:
    given = {name: float(b.ctx.attribute(name, default)) for name, default in (_ALPHA, _BETA)}
    return b.add("HardSigmoidGrad", b.dy[0], b.x[0], domain="minbuild", **given)


def _hard_swish_grad(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    return dy * np.where(x <= -3, 0, np.where(x < 3, x / 3 + 0.5, 1))


def _step(b: GraphBuilder, condition: Value) -> Value:
    """1 where the condition holds, else 0"""
    return condition.cast(b.ctx.element())


def _hard_sigmoid_slope(b: GraphBuilder, x: Value) -> Value:
    """alpha where the line is between 0 and 1"""
    alpha, beta = (b.constant(float(b.ctx.attribute(*given))) for given in (_ALPHA, _BETA))
    line = x * alpha + beta
    between = (line > 0) & (line < 1)
    return _step(b, between) * alpha


def _hard_swish_slope(b: GraphBuilder, x: Value) -> Value:
    """0 up to -3, 1 from 3 on, x / 3 + 1/2 between"""
    low, high, half = b.constant(-3), b.constant(3), b.constant(0.5)
    line = x / high + half
    above = b.where(x < high, line, 1)
    return above * _step(b, x > low)


hard_sigmoid = unary(
    "HardSigmoid",
    hard_sigmoid_kernel,
    _hard_sigmoid,
    unary_cases(2, _ATTRIBUTES),
    _hard_sigmoid_gradient,
    since=(6, 22),
    params=numbers(_ALPHA, _BETA),
    rematerialize=itself,
)
hard_sigmoid_grad = gradient_op(
    "HardSigmoidGrad",
    hard_sigmoid_grad_kernel,
    _hard_sigmoid_grad,
    gradient_cases(2, _ATTRIBUTES),
    domain="minbuild",
    params=numbers(_ALPHA, _BETA),
    slope=_hard_sigmoid_slope,
)
hard_swish = unary(
    "HardSwish",
    hard_swish_kernel,
    computing(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    unary_cases(2),
    lambda b: b.add("HardSwishGrad", b.dy[0], b.x[0], domain="minbuild"),
    since=(14, 22),
    rematerialize=itself,
)
hard_swish_grad = gradient_op(
    "HardSwishGrad",
    hard_swish_grad_kernel,
    computing(_hard_swish_grad),
    gradient_cases(2),
    domain="minbuild",
    slope=_hard_swish_slope,
)

KERNELS = (hard_sigmoid_kernel, hard_sigmoid_grad_kernel, hard_swish_kernel, hard_swish_grad_kernel)
OPS = (hard_sigmoid, hard_sigmoid_grad, hard_swish, hard_swish_grad)
