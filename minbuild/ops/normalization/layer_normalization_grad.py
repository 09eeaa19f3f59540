"""The gradients of LayerNormalization and its relatives, by the kernels of layer_normalization.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase
from minbuild.ops.core.graph_builder import MICROSOFT, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.normalization.layer_normalization import (
    EPSILON,
    SHAPES,
    axes_of,
    call_norm_grad,
    norm_grad_kernel,
    normalized,
    rows_of,
)


def _grad_infer(simple: bool) -> Callable[[OpContext], Sequence[TensorType]]:
    def infer(ctx: OpContext) -> Sequence[TensorType]:
        entries = TensorType(ctx.element(2), ctx.shape(2))
        return (TensorType(ctx.element(1), ctx.shape(1)), *(entries,) * (2 - simple))

    return infer


def _lower_grad(simple: bool) -> Callable[[OpContext], Sequence[KernelCall]]:
    def lower(ctx: OpContext) -> Sequence[KernelCall]:
        mean = "" if simple else ctx.name(3)
        names = (*ctx.names[:3], mean, ctx.name(3 if simple else 4))
        return (call_norm_grad(ctx, names, rows_of(ctx, 1), own=True),)

    return lower


def norm_gradient(
    dy: np.ndarray,
    normal: np.ndarray,
    scale: np.ndarray,
    inverse: np.ndarray,
    axes: tuple[int, ...],
    mean: bool,
) -> np.ndarray:
    """The gradient of x by `dy`, where `normal` is x normalised over `axes`, `inverse` its inverse standard
    deviation, and `scale` broadcasts; `mean` is True where the mean was subtracted."""
    g = dy * scale
    shift = g.mean(axes, keepdims=True) if mean else 0
    return inverse * (g - shift - normal * (g * normal).mean(axes, keepdims=True))


def _grad_reference(simple: bool) -> Callable[..., tuple[np.ndarray, ...]]:
    def reference(
        attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray, scale: np.ndarray, *saved: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        axes = axes_of(attributes, x)
        normal = (x if simple else x - saved[0]) * saved[-1]
        rows = tuple(a for a in range(x.ndim) if a not in axes)
        entries = ((dy * normal).sum(rows), dy.sum(rows))[: 2 - simple]
        dx = norm_gradient(dy, normal, scale=scale, inverse=saved[-1], axes=axes, mean=not simple)
        return (dx, *(e.reshape(scale.shape) for e in entries))

    return reference


def _grad_cases(simple: bool) -> Callable[..., Iterable[TestCase]]:
    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for shape, axis in SHAPES:
            x, dy = random.standard_normal((2, *shape))
            scale, attributes = random.standard_normal(shape[axis:]), {"axis": axis}
            _, *saved = normalized(x, axes_of(attributes, x), EPSILON, simple)
            inputs = (dy, x, scale, *saved[simple:])
            for absent in ((), (0,), (1, 2 - simple)):
                name = f"{list(shape)} axis {axis} without {absent}"
                count = 3 - simple
                yield TestCase(name, inputs, attributes, outputs=count, absent=frozenset(absent), ulps=64)

    return cases


def normalized_parts(b: GraphBuilder, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value]:
    """`x` normalised over `axes`, and its inverse standard deviation, in nodes. `b` is the graph, `epsilon` is added
    to the variance."""
    away = x - x.mean(axes)
    variance = (away * away).mean(axes)
    inverse = (variance + epsilon).sqrt().reciprocal()
    return away * inverse, inverse


def gradient_parts(
    b: GraphBuilder, g: Value, normal: Value, inverse: Value, axes: Sequence[int], mean: bool = True
) -> Value:
    """`norm_gradient` in nodes of `b`: `g` is dy times scale, `normal`, `inverse`, `axes` and `mean` as there."""
    along = normal * (g * normal).mean(axes)
    shifted = g - g.mean(axes) if mean else g
    return (shifted - along) * inverse


def _grad_parts(simple: bool) -> Callable[[GraphBuilder], Results]:
    def parts(b: GraphBuilder) -> Results:
        dy, x, scale, *saved = b.x
        axis, rank = b.ctx.axis(-1, 1), b.ctx.rank(1)
        inner = tuple(range(axis, rank))
        n = (x if simple else x - saved[0]) * saved[-1]
        dx = gradient_parts(b, dy * scale, normal=n, inverse=saved[-1], axes=inner, mean=not simple)
        sums = (dy * n, dy)[: 2 - simple]
        entries = [e.sum(range(axis)) for e in sums]
        return dx, *(e.reshape(b.ctx.shape(2)) for e in entries)

    return parts


def _grad_op(name: str, simple: bool) -> Op:
    return Op(
        name,
        domain=MICROSOFT,
        infer=_grad_infer(simple),
        reference=_grad_reference(simple),
        lower=_lower_grad(simple),
        kernels=(norm_grad_kernel,),
        in_place=((0, 0), (0, 1)),
        accumulates=frozenset({1} if simple else {1, 2}),
        decompose_for_grad=_grad_parts(simple),
        cases=_grad_cases(simple),
    )


layer_normalization_grad = _grad_op("LayerNormalizationGrad", simple=False)
simplified_layer_normalization_grad = _grad_op("SimplifiedLayerNormalizationGrad", simple=True)

OPS = (layer_normalization_grad, simplified_layer_normalization_grad)
