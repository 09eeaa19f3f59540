"""Batch normalization beside inference and BatchNormInternal: ONNX's training mode, statistics per element as before
opset 9, and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ops.core.definition import FLOATS, OpContext, UnsupportedUse
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.normalization.layer_normalization import epsilon_of
from minbuild.ops.normalization.layer_normalization_grad import gradient_parts, normalized_parts


def momentum_of(attributes: Mapping[str, Any]) -> float:
    return float(attributes.get("momentum", np.float32(0.9)))


def trains(ctx: OpContext, outputs: int) -> bool:
    """True in training mode: an attribute from opset 14 on, before by the number of `outputs` in `ctx`."""
    return bool(ctx.attribute("training_mode", 0)) if ctx.version >= 14 else outputs > 1


def body(b: GraphBuilder) -> Results:
    """None for inference with statistics per channel, which has a kernel."""
    other = [i for i in range(1, 5) if {b.ctx.element(i), b.ctx.element()} == set(FLOATS)]
    if other:  # since opset 15 types may differ
        cast = [x.cast(b.ctx.element()) if i in other else x for i, x in enumerate(b.x[:5])]
        return b.many(max(len(b.y), 1), "BatchNormalization", *cast, **b.ctx.attributes)
    if trains(b.ctx, sum(map(bool, b.y))):
        return _with_batch_statistics(b)
    if b.ctx.version < 9 and not b.ctx.attribute("spatial", 1):
        return _per_element(b)
    return None


def _with_batch_statistics(b: GraphBuilder) -> Results:
    """With the mean and the variance of the batch as the last results."""
    y, mean, variance, batch_mean, inverse = decomposed(b)
    return y, mean, variance, batch_mean, _variance(b, inverse)


def _variance(b: GraphBuilder, inverse: Value) -> Value:
    squared = inverse * inverse
    epsilon = b.constant(epsilon_of(b.ctx.attributes))
    return squared.reciprocal() - epsilon


def decomposed(b: GraphBuilder) -> tuple[Value, Value, Value, Value, Value]:
    """Training as by BatchNormInternal, with running statistics that nobody updates in place: they are further
    results."""
    epsilon, keep = epsilon_of(b.ctx.attributes), momentum_of(b.ctx.attributes)
    if b.ctx.version < 9 and not b.ctx.attribute("spatial", 1):
        raise UnsupportedUse(
            "training with statistics per element is not supported; export with opset 9 or newer"
        )
    attributes = {"epsilon": epsilon, "momentum": keep, "training_mode": 1}
    made = b.many(5, "BatchNormInternal", *b.x[:5], domain=MICROSOFT, **attributes)
    b.nodes[-1] = replace(b.nodes[-1], outputs=(made[0].name, "", "", *(v.name for v in made[3:])))
    y, _, _, mean, inverse = made

    def running(before: Value, found: Value) -> Value:
        kept = before * keep
        return kept + found * (1 - keep)

    return y, running(b.x[3], mean), running(b.x[4], _variance(b, inverse)), mean, inverse


def _per_element(b: GraphBuilder) -> Value:
    x, scale, bias, mean, variance = b.x[:5]
    spread = (variance + epsilon_of(b.ctx.attributes)).sqrt()
    normal = (x - mean) / spread
    return normal * scale + bias


def internal_body(b: GraphBuilder) -> Results:
    """BatchNormInternal trains only where its attribute is set."""
    if b.ctx.attribute("training_mode", 0):
        return None
    return b.many(1, "BatchNormalization", *b.x[:5], epsilon=epsilon_of(b.ctx.attributes))


def gradient(b: GradientBuilder) -> Results:
    """Training becomes ONNX Runtime's operator, which updates running statistics in place."""
    if not trains(b.ctx, sum(map(bool, b.y))):
        return _frozen_gradient(b)
    b.replace_forward("BatchNormInternal", training_mode=1)  # which older operators have no attribute for
    return _trained_gradient(b, b.save(4))


def internal_gradient(b: GradientBuilder) -> Results:
    if not b.ctx.attribute("training_mode", 0):
        return _frozen_gradient(b)
    return _trained_gradient(b, b.save(4))


def _trained_gradient(b: GradientBuilder, inverse: Value) -> Results:
    inputs = (b.dy[0], b.x[0], b.x[1], b.save(3), inverse)
    epsilon = epsilon_of(b.ctx.attributes)
    return tuple(b.many(3, "BatchNormalizationGrad", *inputs, domain=MICROSOFT, epsilon=epsilon))


def _frozen_gradient(b: GradientBuilder) -> Results:
    """With the statistics given, every channel is a straight line."""
    shape = b.ctx.shape()
    others = tuple(a for a in range(len(shape)) if a != 1)

    def along(channel: Value) -> Value:
        return channel.unsqueeze(tuple(range(1, len(shape) - 1)))

    def gathered(x: Value) -> Value:
        return x.sum(others, False)

    spread = (b.x[4] + epsilon_of(b.ctx.attributes)).sqrt()
    factor = b.x[1] / spread
    dx, d_bias = b.dy[0] * along(factor), gathered(b.dy[0])
    d_scale = gathered(b.dy[0] * (b.x[0] - along(b.x[3]))) / spread
    d_mean = -(d_bias * factor)
    d_variance = d_scale * factor / spread * -0.5  # scale d_scale / (-2 spread^2)
    return dx, d_scale, d_bias, d_mean, d_variance


def grad_parts(b: GraphBuilder) -> Results:
    """The decomposition of BatchNormalizationGrad over x itself, whose statistics are saved."""
    dy, x, scale = b.x[:3]
    rank = b.ctx.rank(1)
    others = tuple(a for a in range(rank) if a != 1)
    normal, inverse = normalized_parts(b, x, others, epsilon_of(b.ctx.attributes))
    g = dy * scale.unsqueeze(tuple(range(1, rank - 1)))
    sums = [e.sum(others, False) for e in (dy * normal, dy)]
    return gradient_parts(b, g, normal, inverse, others), *sums


OPS: tuple[()] = ()
