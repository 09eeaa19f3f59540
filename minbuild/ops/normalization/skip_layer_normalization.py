"""Operators of ONNX Runtime around layer normalization that are made of others: SkipLayerNormalization, its relative
without a mean, and the gradient that starts from results instead of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import Op, TestCase
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.normalization.layer_normalization import normalized, through_statistics

# Skip layers give their epsilon a default of their own.
_EPSILON = float(np.float32(1e-12))


def _parts(simple: bool, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """gamma, beta and bias by their places: without a mean there is no beta."""
    padded = (*inputs, *(None,) * (5 - len(inputs)))
    return (padded[2], None, padded[3]) if simple else padded[2:5]


def _body(simple: bool) -> Callable[[GraphBuilder], Results]:
    def body(b: GraphBuilder) -> Results:
        gamma, beta, bias = _parts(simple, b.x)
        total = b.x[0] + b.x[1]
        total = total + bias if bias else total
        epsilon = float(b.ctx.attribute("epsilon", _EPSILON))
        if simple:
            y, inverse = b.many(2, "SimplifiedLayerNormalization", total, gamma, axis=-1, epsilon=epsilon)
            return y, None, inverse, total
        inputs = (total, gamma, beta) if beta else (total, gamma)
        return (*b.many(3, "LayerNormalization", *inputs, axis=-1, epsilon=epsilon), total)

    return body


def _gradient(simple: bool) -> Callable[[GradientBuilder], Results]:
    def gradient(b: GradientBuilder) -> Results:
        gamma, _, bias = _parts(simple, b.x)
        outputs = (2,) if simple else (1, 2)
        x, saved = b.save(3), [b.save(i) for i in outputs]
        name = "SimplifiedLayerNormalizationGrad" if simple else "LayerNormalizationGrad"
        through: list[Value] = []
        entries: Sequence[Value | None] = [None] * (2 - simple)
        if b.dy[0]:
            by_y, *entries = b.many(3 - simple, name, b.dy[0], x, gamma, *saved, domain=MICROSOFT, axis=-1)
            through.append(by_y)
        through += through_statistics(b, x, saved, [b.dy[i] if i < len(b.dy) else None for i in outputs])
        through += [dy for dy in b.dy[3:4] if dy]
        total = b.add("Sum", *through) if len(through) > 1 else through[0]
        shape = b.ctx.shape()

        def gathered(i: int) -> Value | None:
            return b.summed_to(total, shape, i) if i in b.requires_grad else None

        onto_bias = gathered(3 if simple else 4) if bias else None
        rest = (onto_bias,) if simple else (entries[1], onto_bias)
        return (total, gathered(1), entries[0], *rest[: len(b.x) - 3])

    return gradient


def _reference(simple: bool) -> Callable[..., tuple[np.ndarray, ...]]:
    def reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        gamma, beta, bias = _parts(simple, inputs)
        total = inputs[0] + inputs[1] + (0 if bias is None else bias)
        y, mean, inverse = normalized(total, (-1,), float(attributes.get("epsilon", _EPSILON)), simple)
        return y * gamma + (0 if beta is None else beta), mean, inverse, total

    return reference


def _cases(simple: bool) -> Callable[..., Iterable[TestCase]]:
    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for shape, skip in (((2, 3, 8), (2, 3, 8)), ((2, 3, 8), (3, 8)), ((5, 9), (5, 9))):
            x, over = random.standard_normal(shape), random.standard_normal(skip)
            gamma, beta, bias = random.standard_normal((3, shape[-1]))
            rest = (gamma, bias) if simple else (gamma, beta, bias)
            for count in range(1, len(rest) + 1):
                name, inputs = f"{list(shape)} and {list(skip)}, {count}", (x, over, *rest[:count])
                absent = frozenset({1} if simple else ())
                yield TestCase(name, inputs, {"epsilon": 0.125}, outputs=4, absent=absent, ulps=32)
                yield TestCase(name + ", one output", inputs, {"epsilon": 0.125}, ulps=32)

    return cases


def _op(name: str, simple: bool) -> Op:
    return Op(
        name,
        domain=MICROSOFT,
        reference=_reference(simple),
        decompose=_body(simple),
        decomposes_to=("Add", "SimplifiedLayerNormalization" if simple else "LayerNormalization"),
        differentiable=frozenset((0, 2, 3) if simple else range(4)),  # the simple one has no mean
        cases=_cases(simple),
        gradient=_gradient(simple),
    )


skip_layer_normalization = _op("SkipLayerNormalization", False)
skip_simplified_layer_normalization = _op("SkipSimplifiedLayerNormalization", True)

# ------------------------------------------------------------------------------- the gradient from the results


def _invertible_body(b: GraphBuilder) -> Results:
    """Of y = scale x' + bias with x' = (x - mean) inv_std: x' / inv_std stands in for x, whose mean then is 0."""
    dy, y, scale, bias, inverse = b.x
    normal = (y - bias) / scale
    inputs = (dy, normal / inverse, scale, inverse - inverse, inverse)
    axis = b.ctx.axis(-1, 1)
    return b.many(3, "LayerNormalizationGrad", *inputs, domain=MICROSOFT, axis=axis)


def _invertible_reference(
    attributes: Mapping[str, Any],
    dy: np.ndarray,
    y: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    inverse: np.ndarray,
) -> tuple[np.ndarray, ...]:
    axis = int(attributes.get("axis", -1)) % y.ndim
    axes, rows = tuple(range(axis, y.ndim)), tuple(range(axis))
    normal = (y - bias) / scale
    g = dy * scale
    away = g - g.mean(axes, keepdims=True) - normal * (g * normal).mean(axes, keepdims=True)
    return inverse * away, (dy * normal).sum(rows), dy.sum(rows)


def _invertible_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axis in (((4, 6), -1), ((2, 3, 5), 1), ((2, 3, 5), 2)):
        dy, x = random.standard_normal((2, *shape))
        scale, bias = random.uniform(0.5, 2, (2, *shape[axis:]))
        normal, _, inverse = normalized(x, tuple(range(axis % x.ndim, x.ndim)), 1e-3)
        inputs = (dy, normal * scale + bias, scale, bias, inverse)
        yield TestCase(f"{list(shape)} axis {axis}", inputs, {"axis": axis}, outputs=3, ulps=64)


invertible_layer_normalization_grad = Op(
    "InvertibleLayerNormalizationGrad",
    domain=MICROSOFT,
    reference=_invertible_reference,
    decompose=_invertible_body,
    decomposes_to=("Div", "Sub", "com.microsoft:LayerNormalizationGrad"),
    cases=_invertible_cases,
)

OPS = (skip_layer_normalization, skip_simplified_layer_normalization, invertible_layer_normalization_grad)
