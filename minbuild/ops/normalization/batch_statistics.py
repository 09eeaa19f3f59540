"""Batch normalization beside inference and BatchNormInternal: ONNX's training mode, statistics per element as before
opset 9, and gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ops.core.definition import FLOATS, OpContext, UnsupportedUse
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.normalization.layer_normalization import gradient_parts, normalized_parts


def epsilon_of(attributes: Mapping[str, Any]) -> float:
    return float(attributes.get("epsilon", np.float32(1e-5)))


def momentum_of(attributes: Mapping[str, Any]) -> float:
    return float(attributes.get("momentum", np.float32(0.9)))


def trains(ctx: OpContext, outputs: int) -> bool:
    """Before opset 14 the number of outputs said so."""
    return bool(ctx.attribute("training_mode", 0)) if ctx.version >= 14 else outputs > 1


def body(b: GraphBuilder) -> Sequence[str] | None:
    """None for inference with statistics per channel, which has a kernel."""
    other = [i for i in range(1, 5) if {b.ctx.element(i), b.ctx.element()} == set(FLOATS)]
    if other:  # since opset 15 types may differ
        cast = [b.add("Cast", x, to=int(b.ctx.element())) if i in other else x for i, x in enumerate(b.x[:5])]
        return b.many(max(len(b.y), 1), "BatchNormalization", *cast, **b.ctx.attributes)
    if trains(b.ctx, sum(map(bool, b.y))):
        return _with_batch_statistics(b)
    if b.ctx.version < 9 and not b.ctx.attribute("spatial", 1):
        return (_per_element(b),)
    return None


def _with_batch_statistics(b: GraphBuilder) -> Sequence[str]:
    """With the mean and the variance of the batch as the last results."""
    y, mean, variance, batch_mean, inverse = apart(b)
    return y, mean, variance, batch_mean, _variance(b, inverse)


def _variance(b: GraphBuilder, inverse: str) -> str:
    squared = b.add("Mul", inverse, inverse)
    epsilon = b.constant(epsilon_of(b.ctx.attributes))
    return b.add("Sub", b.add("Reciprocal", squared), epsilon)


def apart(b: GraphBuilder) -> Sequence[str]:
    """Training as by BatchNormInternal, with running statistics that nobody updates in place: they are further
    results."""
    epsilon, keep = epsilon_of(b.ctx.attributes), momentum_of(b.ctx.attributes)
    if b.ctx.version < 9 and not b.ctx.attribute("spatial", 1):
        raise UnsupportedUse(
            "training with statistics per element is not supported; export with opset 9 or newer"
        )
    attributes = {"epsilon": epsilon, "momentum": keep, "training_mode": 1}
    made = b.many(5, "BatchNormInternal", *b.x[:5], domain=MICROSOFT, **attributes)
    b.nodes[-1] = replace(b.nodes[-1], outputs=(made[0], "", "", *made[3:]))
    y, _, _, mean, inverse = made

    def running(before: str, found: str) -> str:
        kept = b.add("Mul", before, b.constant(keep))
        return b.add("Add", kept, b.add("Mul", found, b.constant(1 - keep)))

    return y, running(b.x[3], mean), running(b.x[4], _variance(b, inverse)), mean, inverse


def _per_element(b: GraphBuilder) -> str:
    x, scale, bias, mean, variance = b.x[:5]
    spread = b.add("Sqrt", b.add("Add", variance, b.constant(epsilon_of(b.ctx.attributes))))
    normal = b.add("Div", b.add("Sub", x, mean), spread)
    return b.add("Add", b.add("Mul", normal, scale), bias)


def internal_body(b: GraphBuilder) -> Sequence[str] | None:
    """BatchNormInternal trains only where it is told to."""
    if b.ctx.attribute("training_mode", 0):
        return None
    return b.many(1, "BatchNormalization", *b.x[:5], epsilon=epsilon_of(b.ctx.attributes))


def gradient(b: GradientBuilder) -> Sequence[str]:
    """Training becomes ONNX Runtime's operator, which updates running statistics in place."""
    if not trains(b.ctx, sum(map(bool, b.y))):
        return _frozen_gradient(b)
    b.replace_forward("BatchNormInternal", training_mode=1)  # which older operators have no attribute for
    return _trained_gradient(b, b.save(4))


def internal_gradient(b: GradientBuilder) -> Sequence[str]:
    if not b.ctx.attribute("training_mode", 0):
        return _frozen_gradient(b)
    return _trained_gradient(b, b.save(4))


def _trained_gradient(b: GradientBuilder, inverse: str) -> Sequence[str]:
    inputs = (b.dy[0], b.x[0], b.x[1], b.save(3), inverse)
    epsilon = epsilon_of(b.ctx.attributes)
    return b.each(*b.many(3, "BatchNormalizationGrad", *inputs, domain=MICROSOFT, epsilon=epsilon))


def _frozen_gradient(b: GradientBuilder) -> Sequence[str]:
    """With the statistics given, every channel is a straight line."""
    shape, half = b.ctx.shape(), b.constant(-0.5)
    others = tuple(a for a in range(len(shape)) if a != 1)

    def along(channel: str) -> str:
        return b.unsqueeze(channel, tuple(range(1, len(shape) - 1)))

    def gathered(x: str) -> str:
        return b.reduce("ReduceSum", x, others, False)

    spread = b.add("Sqrt", b.add("Add", b.x[4], b.constant(epsilon_of(b.ctx.attributes))))
    factor = b.add("Div", b.x[1], spread)
    dx = b.add("Mul", b.dy[0], along(factor)) if 0 in b.wants else ""
    d_bias = gathered(b.dy[0]) if b.wants & {2, 3} else ""
    d_scale = d_mean = d_variance = ""
    if b.wants & {1, 4}:
        away = b.add("Sub", b.x[0], along(b.x[3]))
        d_scale = b.add("Div", gathered(b.add("Mul", b.dy[0], away)), spread)
    if 3 in b.wants:
        d_mean = b.add("Neg", b.add("Mul", d_bias, factor))
    if 4 in b.wants:  # scale d_scale / (-2 spread^2)
        each = b.add("Div", b.add("Mul", d_scale, factor), spread)
        d_variance = b.add("Mul", each, half)
    return b.each(dx, d_scale, d_bias, d_mean, d_variance)


def grad_parts(b: GraphBuilder) -> Sequence[str]:
    """What BatchNormalizationGrad is made of, from x itself, whose statistics the saved ones are."""
    dy, x, scale = b.x[:3]
    rank = b.ctx.rank(1)
    others = tuple(a for a in range(rank) if a != 1)
    normal, inverse = normalized_parts(b, x, others, epsilon_of(b.ctx.attributes))
    g = b.add("Mul", dy, b.unsqueeze(scale, tuple(range(1, rank - 1))))
    sums = [b.reduce("ReduceSum", e, others, False) for e in (b.add("Mul", dy, normal), dy)]
    return gradient_parts(b, g, normal, inverse, others), *sums


OPS: tuple[()] = ()
