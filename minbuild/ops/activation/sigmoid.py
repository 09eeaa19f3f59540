"""Sigmoid, Tanh and their gradients, which their outputs are enough for."""

from __future__ import annotations

import numpy as np

from minbuild.ops.core.elementwise import (
    computing,
    gradient_cases,
    gradient_kernel_of,
    gradient_op,
    kernel_of,
    unary,
    unary_cases,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results

sigmoid_kernel = kernel_of("sigmoid")
sigmoid_grad_kernel = gradient_kernel_of("sigmoid_grad", saved="y")
tanh_kernel = kernel_of("tanh")
tanh_grad_kernel = gradient_kernel_of("tanh_grad", saved="y")


def _sigmoid_second(b: GradientBuilder) -> Results:
    """Of dy * y * (1 - y), given what flows in: by dy the same once more, by y dy * (1 - 2y)."""
    dy, y = b.x
    slope = 1 - (y + y)
    return (b.microsoft("SigmoidGrad", b.dy[0], y), b.dy[0] * dy * slope)


def _tanh_second(b: GradientBuilder) -> Results:
    """Of dy * (1 - y^2), given what flows in: by dy the same once more, by y -2 * dy * y."""
    dy, y = b.x
    slope = y * -2
    return (b.microsoft("TanhGrad", b.dy[0], y), b.dy[0] * dy * slope)


sigmoid = unary(
    "Sigmoid",
    sigmoid_kernel,
    computing(lambda x: 1 / (1 + np.exp(-x))),
    unary_cases(4),
    lambda b: b.microsoft("SigmoidGrad", b.dy[0], b.y[0]),
)
sigmoid_grad = gradient_op(
    "SigmoidGrad",
    sigmoid_grad_kernel,
    computing(lambda dy, y: dy * y * (1 - y)),
    gradient_cases(4, saved=lambda x: 0.5 + 0.3 * np.tanh(x)),
    _sigmoid_second,
)
tanh = unary(
    "Tanh",
    tanh_kernel,
    computing(np.tanh),
    unary_cases(2),
    lambda b: b.microsoft("TanhGrad", b.dy[0], b.y[0]),
)
tanh_grad = gradient_op(
    "TanhGrad",
    tanh_grad_kernel,
    computing(lambda dy, y: dy * (1 - y * y)),
    gradient_cases(4, saved=lambda x: 0.7 * np.tanh(x)),
    _tanh_second,
)

KERNELS = (sigmoid_kernel, sigmoid_grad_kernel, tanh_kernel, tanh_grad_kernel)
OPS = (sigmoid, sigmoid_grad, tanh, tanh_grad)
