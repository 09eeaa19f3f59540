"""LRN: every element divided by a power of the squares of its neighbours among the channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ir.dims import product
from minbuild.ops.convolution.sliding_window import reshaped
from minbuild.ops.core.definition import Op, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value


def _numbers(attributes: Mapping[str, Any]) -> tuple[int, float, float, float]:
    """size, alpha / size, beta, bias"""
    size = int(attributes["size"])
    return (
        size,
        attributes.get("alpha", 1e-4) / size,
        attributes.get("beta", 0.75),
        attributes.get("bias", 1.0),
    )


def _over_channels(b: GraphBuilder, x: Value, before: int, after: int) -> Value:
    """The sum over a window of channels: a pool over [N,1,C,S]."""
    shape = b.ctx.shape()
    image = reshaped(b, x, (shape[0], 1, shape[1], product(shape[2:])))
    pads, window = (before, 0, after, 0), (before + after + 1, 1)
    total = b.add("SumPool", image, domain="minbuild", kernel_shape=window, pads=pads)
    return total.reshape_like(b.x[0])


def _base(b: GraphBuilder) -> Value:
    """bias + alpha / size * sum of squares"""
    size, alpha, _, bias = _numbers(b.ctx.attributes)
    before = (size - 1) // 2
    total = _over_channels(b, b.x[0] * b.x[0], before, size - 1 - before)
    return total * alpha + bias


def _body(b: GraphBuilder) -> Results:
    beta = _numbers(b.ctx.attributes)[2]
    return b.x[0] * _base(b) ** (-beta)


def _gradient(b: GradientBuilder) -> Results:
    """With s the base: dx = dy s^-beta - 2 alpha/size beta x sum(dy x s^(-beta-1)), the sum over all whose window
    holds x."""
    size, alpha, beta, _ = _numbers(b.ctx.attributes)
    base, before = _base(b), (size - 1) // 2
    power = base ** (-beta)
    straight = b.dy[0] * power
    flow = straight * b.x[0] / base
    around = _over_channels(b, flow, size - 1 - before, before)
    across = b.x[0] * around * (2 * alpha * beta)
    return straight - across


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    size, alpha, beta, bias = _numbers(attributes)
    before = (size - 1) // 2
    pads = [(0, 0), (before, size - 1 - before)] + [(0, 0)] * (x.ndim - 2)
    squares = np.pad(x * x, pads)
    total = sum(squares[:, i : i + x.shape[1]] for i in range(size))
    return x / (bias + alpha * total) ** beta


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, attributes in (
        ((2, 5, 3, 4), {"size": 3}),
        ((1, 7, 2, 2), {"size": 4, "alpha": 0.5, "beta": 0.5, "bias": 2.0}),
        ((2, 3, 4), {"size": 5, "alpha": 2.0}),
        ((2, 6), {"size": 2, "alpha": 0.3, "beta": 1.0}),
    ):
        yield TestCase(f"{list(shape)} {attributes}", (random.standard_normal(shape),), attributes, ulps=32)


lrn = Op(
    "LRN",
    since=(1, 13),
    decompose=_body,
    decomposes_to=("Add", "Mul", "Pow", "minbuild:SumPool"),
    reference=_reference,
    gradient=_gradient,
    cases=_cases,
)

OPS = (lrn,)
