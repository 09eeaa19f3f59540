"""Relu, LeakyRelu, ThresholdedRelu and their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import (
    FLOATS,
    SIGNED,
    Op,
    TestCase,
    every_input,
    itself,
)
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

relu_kernel = kernel_of("relu", types=FLOATS + SIGNED)
relu_grad_kernel = gradient_kernel_of("relu_grad")
leaky_relu_kernel = kernel_of("leaky_relu", params=("alpha:float",))
leaky_relu_grad_kernel = gradient_kernel_of("leaky_relu_grad", params=("alpha:float",))

_LEAK = ("alpha", float(np.float32(0.01)))
_LEAKS: tuple[Mapping[str, Any], ...] = (
    {"alpha": 0.125},
    {},
    {"alpha": 0.0},
    {"alpha": -0.5},
    {"alpha": 2.0},
)
_REAL = unary_cases(0)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from _REAL(random)
    for kind in ("int8", "int16", "int32", "int64"):
        yield TestCase(kind, (random.integers(-99, 99, (3, 7)).astype(kind),), ulps=0)


def _gradient(b: GradientBuilder) -> Results:
    """The output is positive where the input is, and is kept anyway by what reads it."""
    return b.microsoft("ReluGrad", b.dy[0], b.y[0])


relu = unary(
    "Relu",
    relu_kernel,
    computing(lambda x: np.maximum(x, 0)),
    _cases,
    _gradient,
    since=(6, 13, 14),
    rematerialize=itself,
    batched_inputs=every_input,
)


relu_grad = gradient_op(
    "ReluGrad",
    relu_grad_kernel,
    computing(lambda dy, x: np.where(x > 0, dy, 0)),
    gradient_cases(0),
    lambda b: b.microsoft("ReluGrad", b.dy[0], b.x[1]),
    batched_inputs=every_input,
)


def _leaky(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(x > 0, x, attributes.get(*_LEAK) * x))


def _leaky_grad(attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(x > 0, dy, attributes.get(*_LEAK) * dy))


def _leaky_gradient(b: GradientBuilder) -> Results:
    """The output has the input's sign unless the slope is negative, which ONNX Runtime overlooks."""
    alpha = float(b.ctx.attribute(*_LEAK))
    saved = b.y[0] if alpha >= 0 else b.x[0]
    return b.microsoft("LeakyReluGrad", b.dy[0], saved, alpha=alpha)


def _leaky_second(b: GradientBuilder) -> Results:
    alpha = float(b.ctx.attribute(*_LEAK))
    return b.microsoft("LeakyReluGrad", b.dy[0], b.x[1], alpha=alpha)


leaky_relu = unary(
    "LeakyRelu",
    leaky_relu_kernel,
    _leaky,
    unary_cases(1, _LEAKS),
    _leaky_gradient,
    since=(6, 16),
    params=numbers(_LEAK),
    rematerialize=itself,
)
leaky_relu_grad = gradient_op(
    "LeakyReluGrad",
    leaky_relu_grad_kernel,
    _leaky_grad,
    gradient_cases(1, _LEAKS),
    _leaky_second,
    params=numbers(_LEAK),
)


def _thresholded(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(x > attributes.get("alpha", 1.0), x, 0))


def _kept(b: GraphBuilder, x: Value) -> Value:
    """`x` where the operator's input exceeds the threshold, else 0."""
    above = b.x[0] > b.ctx.attribute("alpha", 1.0)
    return b.where(above, x, 0)


thresholded_relu = Op(
    "ThresholdedRelu",
    since=(10, 22),
    reference=_thresholded,
    decompose=lambda b: _kept(b, b.x[0]),
    decomposes_to=("Greater", "Where"),
    cases=unary_cases(1, ({}, {"alpha": 0.5}, {"alpha": -1.0})),
    gradient=lambda b: _kept(b, b.dy[0]),
)

KERNELS = (relu_kernel, relu_grad_kernel, leaky_relu_kernel, leaky_relu_grad_kernel)
OPS = (relu, relu_grad, leaky_relu, leaky_relu_grad, thresholded_relu)
