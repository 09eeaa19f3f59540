"""Momentum, Adagrad and RMSprop: one pass over all trained parameters, with one moment each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import BOOL, FLOATS, Case, KernelFunction, Launch, Op, Site
from minbuild.ops.optimizer.update import numbers

_ARGS = ("p:T=", "m:T=", "g:T", "rate:float")
_TYPES = {"T": FLOATS}
momentum_kernel = KernelFunction("momentum", _ARGS, ("weight_decay", "momentum", "nesterov"), _TYPES)
scaled_kernel = KernelFunction("scaled_descent", _ARGS, ("weight_decay", "keep", "take", "epsilon"), _TYPES)

Step = Callable[[Mapping[str, Any], np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def momentum_step(
    attributes: Mapping[str, Any], m: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The direction and the new moment of torch.optim.SGD, dampening 0."""
    (factor,) = numbers(attributes, momentum=0.9)
    m = factor * m + g
    return (g + factor * m if attributes.get("nesterov", 0) else m), m


def adagrad_step(
    attributes: Mapping[str, Any], m: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of torch.optim.Adagrad, lr_decay 0."""
    m = m + g * g
    (epsilon,) = numbers(attributes, epsilon=1e-10)
    return g / (np.sqrt(m) + epsilon), m


def rmsprop_step(
    attributes: Mapping[str, Any], m: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of torch.optim.RMSprop, without momentum and not centered."""
    keep, epsilon = numbers(attributes, alpha=0.99, epsilon=1e-8)
    take = float(np.float32(1 - attributes.get("alpha", 0.99)))
    m = keep * m + take * g * g
    return g / (np.sqrt(m) + epsilon), m


def _select_momentum(site: Site) -> Sequence[Launch]:
    factor, nesterov = float(site.attribute("momentum", 0.9)), int(site.attribute("nesterov", 0))
    return (_launch(site, momentum_kernel, factor, nesterov),)


def _select_adagrad(site: Site) -> Sequence[Launch]:
    return (_launch(site, scaled_kernel, 1.0, 1.0, float(site.attribute("epsilon", 1e-10))),)


def _select_rmsprop(site: Site) -> Sequence[Launch]:
    alpha, epsilon = float(site.attribute("alpha", 0.99)), float(site.attribute("epsilon", 1e-8))
    return (_launch(site, scaled_kernel, alpha, 1 - alpha, epsilon),)


def _launch(site: Site, kernel: KernelFunction, *numbers: float) -> Launch:
    rate, p, g, m = site.names[:4]
    decay = float(site.attribute("weight_decay", 0.0))
    return kernel.launch(p, m, g, rate, types=(site.element(1),), params=(decay, *numbers))


def _optimizer(
    name: str, step: Step, select: Callable[[Site], Sequence[Launch]], variants: Sequence[Mapping[str, Any]]
) -> Op:
    """The operator: inputs rate, parameters, gradients, moments; output the flag that says it is done."""

    def reference(
        attributes: Mapping[str, Any], rate: np.ndarray, p: np.ndarray, g: np.ndarray, m: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        (decay,) = numbers(attributes, weight_decay=0.0)
        direction, m = step(attributes, m, g + decay * p)
        return np.array([True]), p - rate * direction, m

    def cases(random: np.random.Generator) -> Iterable[Case]:
        for attributes in variants:
            for count in (1, 8, 1001):
                p, g = random.standard_normal((2, count))
                moments = random.uniform(0.5, 2, count)
                inputs = (np.array([0.125], np.float32), p, g, moments)
                label = f"{count} parameters {dict(attributes)}"
                yield Case(label, inputs, attributes, absent=frozenset({0}), ulps=4)

    return Op(
        name,
        domain="minbuild",
        infer=lambda site: (TensorType(BOOL, (1,)),),
        reference=reference,
        select=select,
        updates={1: None, 3: None},
        cases=cases,
    )


momentum = _optimizer(
    "MomentumOptimizer",
    momentum_step,
    _select_momentum,
    ({}, {"momentum": 0.5, "nesterov": 1}, {"momentum": 0.75, "weight_decay": 0.25}),
)
adagrad = _optimizer(
    "AdagradOptimizer", adagrad_step, _select_adagrad, ({}, {"epsilon": 0.125, "weight_decay": 0.25})
)
rmsprop = _optimizer(
    "RMSPropOptimizer",
    rmsprop_step,
    _select_rmsprop,
    ({}, {"alpha": 0.5, "epsilon": 0.125}, {"alpha": 0.75, "weight_decay": 0.25}),
)
