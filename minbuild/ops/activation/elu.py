"""Elu, Celu and Selu, which are one function of three numbers, and its gradient.

y = slope * (x where x >= 0, else scale * (e^(x / width) - 1))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import Op, OpContext
from minbuild.ops.core.elementwise import (
    gradient_cases,
    gradient_kernel_of,
    gradient_op,
    kernel_of,
    unary,
    unary_cases,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

_Three = Callable[[Mapping[str, Any]], tuple[float, float, float]]
_NUMBERS = ("slope", "scale", "width")
_PARAMS = tuple(f"{name}:float" for name in _NUMBERS)
_SELU = {"alpha": 1.6732631921768188, "gamma": 1.0507010221481323}  # ONNX's defaults, floats written out
_PLAIN = dict.fromkeys(_NUMBERS, 1.0)

elu_kernel = kernel_of("elu", params=_PARAMS)
elu_grad_kernel = gradient_kernel_of("elu_grad", params=_PARAMS)


def _of_elu(attributes: Mapping[str, Any]) -> tuple[float, float, float]:
    return 1.0, float(attributes.get("alpha", 1.0)), 1.0


def _of_celu(attributes: Mapping[str, Any]) -> tuple[float, float, float]:
    alpha = float(attributes.get("alpha", 1.0))
    return 1.0, alpha, alpha


def _of_selu(attributes: Mapping[str, Any]) -> tuple[float, float, float]:
    alpha, gamma = (float(attributes.get(name, default)) for name, default in _SELU.items())
    return gamma, alpha, 1.0


def _of_gradient(attributes: Mapping[str, Any]) -> tuple[float, float, float]:
    slope, scale, width = (float(attributes[name]) for name in _NUMBERS)
    return slope, scale, width


def _op(name: str, three: _Three, attributes: Sequence[Mapping[str, Any]], since: tuple[int, ...]) -> Op:
    def reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
        slope, scale, width = three(attributes)
        return np.asarray(slope * np.where(x < 0, scale * np.expm1(np.minimum(x, 0) / width), x))

    def params(ctx: OpContext) -> Sequence[float]:
        return three(ctx.attributes)

    def gradient(b: GradientBuilder) -> Results:
        chosen = dict(zip(_NUMBERS, three(b.ctx.attributes), strict=True))
        return b.add("EluGrad", b.dy[0], b.x[0], domain="minbuild", **chosen)

    cases = unary_cases(3, attributes)
    return unary(name, elu_kernel, reference, cases, gradient, since=since, params=params)


def _grad_reference(attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    slope, scale, width = _of_gradient(attributes)
    return np.asarray(dy * slope * np.where(x < 0, scale / width * np.exp(np.minimum(x, 0) / width), 1))


def _slope(b: GraphBuilder, x: Value) -> Value:
    """slope (1 where x >= 0, else scale / width e^(x / width))"""
    slope, scale, width = _of_gradient(b.ctx.attributes)
    below = -(-x).relu()
    power = (below / width).exp()
    falling = power * (slope * scale / width)
    return b.where(x < 0, falling, slope)


elu = _op("Elu", _of_elu, ({}, {"alpha": 0.5}, {"alpha": 2.0}), (6, 22))
celu = _op("Celu", _of_celu, ({}, {"alpha": 0.5}, {"alpha": 2.0}), (12, 28))
selu = _op("Selu", _of_selu, ({}, {"alpha": 1.5, "gamma": 2.0}), (6, 22))
elu_grad = gradient_op(
    "EluGrad",
    elu_grad_kernel,
    _grad_reference,
    gradient_cases(3, (_PLAIN, {"slope": 1.5, "scale": 2.0, "width": 0.5})),
    domain="minbuild",
    params=lambda ctx: _of_gradient(ctx.attributes),
    slope=_slope,
)

KERNELS = (elu_kernel, elu_grad_kernel)
OPS = (elu, celu, selu, elu_grad)
