"""Momentum, Adagrad and RMSprop: one pass over all trained parameters, with one moment each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import (
    ELEMENTS,
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
)
from minbuild.ops.optimizer.update_rules import numbers, updated_flag

_ARGS = ("p:T=", "m:T=", "g:T", "rate:float")
_TYPES = {"T": FLOATS}
momentum_kernel = KernelFunction(
    "momentum", _ARGS, ("weight_decay:float", "momentum:float", "nesterov:int"), _TYPES, cut=ELEMENTS
)
scaled_kernel = KernelFunction(
    "scaled_descent",
    _ARGS,
    ("weight_decay:float", "keep:float", "take:float", "epsilon:float"),
    _TYPES,
    cut=ELEMENTS,
)

Step = Callable[[Mapping[str, Any], np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def momentum_step(
    attributes: Mapping[str, Any], m: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The direction and the new moment of torch.optim.SGD, dampening 0. `attributes` are the operator's, `m` is the
    moment, `g` the gradient, with weight decay."""
    (factor,) = numbers(attributes, momentum=0.9)
    m = factor * m + g
    return (g + factor * m if attributes.get("nesterov", 0) else m), m


def adagrad_step(
    attributes: Mapping[str, Any], m: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The direction and the new moment of torch.optim.Adagrad, lr_decay 0: `attributes` are the operator's, `m` is
    the sum of squares, `g` the gradient, with weight decay."""
    m = m + g * g
    (epsilon,) = numbers(attributes, epsilon=1e-10)
    return g / (np.sqrt(m) + epsilon), m


def rmsprop_step(
    attributes: Mapping[str, Any], m: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The direction and the new moment of torch.optim.RMSprop, without momentum and not centered: `attributes` are
    the operator's, `m` is the mean of squares, `g` the gradient, with weight decay."""
    keep, epsilon = numbers(attributes, alpha=0.99, epsilon=1e-8)
    take = float(np.float32(1 - attributes.get("alpha", 0.99)))
    m = keep * m + take * g * g
    return g / (np.sqrt(m) + epsilon), m


def _lower_momentum(ctx: OpContext) -> Sequence[KernelCall]:
    factor, nesterov = float(ctx.attribute("momentum", 0.9)), int(ctx.attribute("nesterov", 0))
    return (_call(ctx, momentum_kernel, factor, nesterov),)


def _lower_adagrad(ctx: OpContext) -> Sequence[KernelCall]:
    return (_call(ctx, scaled_kernel, 1.0, 1.0, float(ctx.attribute("epsilon", 1e-10))),)


def _lower_rmsprop(ctx: OpContext) -> Sequence[KernelCall]:
    alpha, epsilon = float(ctx.attribute("alpha", 0.99)), float(ctx.attribute("epsilon", 1e-8))
    return (_call(ctx, scaled_kernel, alpha, 1 - alpha, epsilon),)


def _call(ctx: OpContext, kernel: KernelFunction, *numbers: float) -> KernelCall:
    rate, p, g, m = ctx.names[:4]
    decay = float(ctx.attribute("weight_decay", 0.0))
    return kernel.call(p, m, g, rate, types=(ctx.element(1),), params=(decay, *numbers))


def _optimizer(
    name: str,
    step: Step,
    kernel: KernelFunction,
    lower: Callable[[OpContext], Sequence[KernelCall]],
    variants: Sequence[Mapping[str, Any]],
) -> Op:
    """The operator: inputs rate, parameters, gradients, moments; output the flag that says it is done."""

    def reference(
        attributes: Mapping[str, Any], rate: np.ndarray, p: np.ndarray, g: np.ndarray, m: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        (decay,) = numbers(attributes, weight_decay=0.0)
        direction, m = step(attributes, m, g + decay * p)
        return np.array([True]), p - rate * direction, m

    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for attributes in variants:
            for count in (1, 8, 1001):
                p, g = random.standard_normal((2, count))
                moments = random.uniform(0.5, 2, count)
                inputs = (np.array([0.125], np.float32), p, g, moments)
                label = f"{count} parameters {dict(attributes)}"
                yield TestCase(label, inputs, attributes, absent=frozenset({0}), ulps=4)

    return Op(
        name,
        domain="minbuild",
        infer=updated_flag,
        reference=reference,
        lower=lower,
        kernels=(kernel,),
        mutates={1: None, 3: None},
        cases=cases,
    )


momentum = _optimizer(
    "MomentumOptimizer",
    momentum_step,
    momentum_kernel,
    _lower_momentum,
    ({}, {"momentum": 0.5, "nesterov": 1}, {"momentum": 0.75, "weight_decay": 0.25}),
)
adagrad = _optimizer(
    "AdagradOptimizer",
    adagrad_step,
    scaled_kernel,
    _lower_adagrad,
    ({}, {"epsilon": 0.125, "weight_decay": 0.25}),
)
rmsprop = _optimizer(
    "RMSPropOptimizer",
    rmsprop_step,
    scaled_kernel,
    _lower_rmsprop,
    ({}, {"alpha": 0.5, "epsilon": 0.125}, {"alpha": 0.75, "weight_decay": 0.25}),
)

KERNELS = (momentum_kernel, scaled_kernel)
OPS = (momentum, adagrad, rmsprop)
