"""ORT's operators that scale several tensors at once: BatchScale, ScaledSum, MixedPrecisionScale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ir import ElementType
from minbuild.ops.core.definition import Op, OpContext, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results


def _scale(ctx: OpContext, i: int) -> float:
    return float(ctx.attribute(f"scale_{i}", 1.0))


# ------------------------------------------------------------------------- BatchScale: y_i = scale_i * x


def _batch_body(b: GraphBuilder) -> Results:
    return [b.x[0] * _scale(b.ctx, i) if name else None for i, name in enumerate(b.y)]


def _batch_reference(attributes: Mapping[str, Any], x: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(x * attributes[f"scale_{i}"] for i in range(len(attributes)))


def _batch_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (7,), (2, 3)):
        for count in (2, 3):
            scales = {f"scale_{i}": 0.5 + 0.25 * i for i in range(count)}
            yield TestCase(f"{list(shape)}, {count}", (random.standard_normal(shape),), scales, outputs=count)


def _batch_gradient(b: GradientBuilder) -> Results:
    terms = [dy * _scale(b.ctx, i) for i, dy in enumerate(b.dy) if dy]
    return terms[0] if len(terms) == 1 else b.add("Sum", *terms)


batch_scale = Op(
    "BatchScale",
    domain="com.microsoft",
    reference=_batch_reference,
    decompose=_batch_body,
    decomposes_to=("Mul",),
    cases=_batch_cases,
    gradient=_batch_gradient,
    differentiable=frozenset({0, 1, 2}),
)

# ------------------------------------------------------------------------- ScaledSum: y = sum of scale_i * x_i


def _sum_body(b: GraphBuilder) -> Results:
    terms = [x * _scale(b.ctx, i) for i, x in enumerate(b.x) if x]
    return b.add("Sum", *terms)


def _sum_reference(attributes: Mapping[str, Any], *terms: np.ndarray) -> np.ndarray:
    return np.asarray(sum(x * attributes[f"scale_{i}"] for i, x in enumerate(terms)))


def _sum_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (7,), (2, 3)):
        for count in (2, 3):
            scales = {f"scale_{i}": 0.5 - 0.75 * i for i in range(count)}
            yield TestCase(f"{list(shape)}, {count}", tuple(random.standard_normal((count, *shape))), scales)


def _sum_gradient(b: GradientBuilder) -> Results:
    """All of them in one BatchScale, as ORT writes it; of three at most, as ScaledSum has."""
    scales = {f"scale_{i}": _scale(b.ctx, i) for i in range(len(b.x))}
    return tuple(b.many(len(b.x), "BatchScale", b.dy[0], domain="com.microsoft", **scales))


scaled_sum = Op(
    "ScaledSum",
    domain="com.microsoft",
    reference=_sum_reference,
    decompose=_sum_body,
    decomposes_to=("Mul", "Sum"),
    cases=_sum_cases,
    gradient=_sum_gradient,
)

# ------------------------------------------------------------- MixedPrecisionScale: y_i = x_i * scale as `to`


def _mixed_body(b: GraphBuilder) -> Results:
    """Multiplied in float at least; fused outputs are one vector of all elements."""
    to, wide = ElementType(b.ctx.attribute("to")), ElementType.FLOAT
    if any(b.ctx.element(i) is ElementType.DOUBLE for i in range(len(b.x))):
        wide = ElementType.DOUBLE
    scale, *terms = (x if b.ctx.element(i) is wide else x.cast(wide) for i, x in enumerate(b.x))
    factor = scale.squeeze(tuple(range(b.ctx.rank(0))))
    scaled = [x * factor for x in terms]
    if b.ctx.attribute("fuse_outputs", 0):
        flat = [x.reshape([-1]) for x in scaled]
        scaled = [b.add("Concat", *flat, axis=0)]
    return [x.cast(to) for x in scaled]


def _mixed_reference(
    attributes: Mapping[str, Any], scale: np.ndarray, *terms: np.ndarray
) -> tuple[np.ndarray, ...]:
    scaled = tuple(x * scale.reshape(()) for x in terms)
    if attributes.get("fuse_outputs", 0):
        scaled = (np.concatenate([x.ravel() for x in scaled]),)
    return tuple(x.astype(ElementType(attributes["to"]).dtype) for x in scaled)


def _mixed_cases(random: np.random.Generator) -> Iterable[TestCase]:
    inputs = (np.array([0.5]), random.standard_normal((2, 3)), random.standard_normal(7))
    for to in (ElementType.FLOAT, ElementType.FLOAT16, ElementType.BFLOAT16):
        yield TestCase(f"to {to.label}", inputs, {"to": int(to)}, outputs=2, ulps=1)
        yield TestCase(f"to {to.label}, fused", inputs, {"to": int(to), "fuse_outputs": 1}, ulps=1)


mixed_precision_scale = Op(
    "MixedPrecisionScale",
    domain="com.microsoft",
    reference=_mixed_reference,
    decompose=_mixed_body,
    decomposes_to=("Cast", "Concat", "Mul"),
    cases=_mixed_cases,
)

OPS = (batch_scale, scaled_sum, mixed_precision_scale)
