"""The nodes of optimizer models, in float64: one function for each, for the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from minbuild.ir import Node
from minbuild.ops.optimizer.adapt_loss_scale import adapted
from minbuild.ops.optimizer.flat_optimizers import Step, adagrad_step, momentum_step, rmsprop_step


class Training(Protocol):
    """The state of a model in training as optimizers read it, by names of parameters; they write into the arrays."""

    trained: tuple[str, ...]
    parameters: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    moments: dict[str, list[np.ndarray]]
    learning_rate: float
    step_count: int  # of the update being made, from 1


SKIPPED = object()  # result of a rule after which the step ends, without an update
Rule = Callable[[Training, Node], object]


def _clip(trainer: Training, node: Node) -> None:
    """The norm is that of all gradients taken as one vector; ONNX Runtime adds 1e-6 to it."""
    norm = np.sqrt(sum(float((g * g).sum()) for g in trainer.gradients.values()))
    scale = min(1.0, node.attributes.get("max_norm", 1.0) / (norm + 1e-6))
    for gradient in trainer.gradients.values():
        gradient *= scale


def _adapt_loss_scale(trainer: Training, node: Node) -> object:
    """Dynamic loss scaling: no update where a gradient is not finite."""
    scale, good = (trainer.parameters[name] for name in node.inputs[1:3])
    finite = all(np.isfinite(g).all() for g in trainer.gradients.values())
    scale[0], good[0] = adapted(scale[0], good[0], node.attributes["growth_interval"], finite)
    return None if finite else SKIPPED


def _sgd(trainer: Training, node: Node) -> None:
    for name in trainer.trained:
        trainer.parameters[name] -= trainer.learning_rate * trainer.gradients[name]


def _adamw(trainer: Training, node: Node) -> None:
    """adam_mode 1 decays after the update and corrects the rate; 0 decays first and corrects both moments."""
    get, rate, step = node.attributes.get, trainer.learning_rate, trainer.step_count
    alpha, beta, epsilon = get("alpha", 0.9), get("beta", 0.999), get("epsilon", 1e-8)
    decay, mode, corrects = get("weight_decay", 0.01), get("adam_mode", 0), get("correct_bias", 1)
    # ONNX Runtime rounds the powers to float32: while 1 - beta^step is small that is more than noise.
    first, second = (1 - float(np.float32(b**step)) if corrects else 1.0 for b in (alpha, beta))
    for name in trainer.trained:
        p, g, (m, v) = trainer.parameters[name], trainer.gradients[name], trainer.moments[name]
        m[...] = alpha * m + (1 - alpha) * g
        v[...] = beta * v + (1 - beta) * g * g
        if mode == 0:
            p *= 1 - rate * decay
            p -= rate * (m / first) / (np.sqrt(v / second) + epsilon)
        else:
            p -= rate * np.sqrt(second) / first * m / (np.sqrt(v) + epsilon)
            p *= 1 - rate * decay


def _adam(trainer: Training, node: Node) -> None:
    """Weight decay is a part of the gradient."""
    decay = node.attributes.get("weight_decay", 0.0)
    own = trainer.gradients
    trainer.gradients = {n: g + decay * trainer.parameters[n] for n, g in own.items()}
    _adamw(trainer, replace(node, attributes={**node.attributes, "weight_decay": 0.0, "adam_mode": 0}))
    trainer.gradients = own


def _with_one_moment(step: Step) -> Rule:
    """Weight decay is a part of the gradient; `step` gives the direction and the new moment."""

    def apply(trainer: Training, node: Node) -> None:
        for name in trainer.trained:
            p, (m, *_) = trainer.parameters[name], trainer.moments[name]
            g = trainer.gradients[name] + node.attributes.get("weight_decay", 0.0) * p
            direction, m[...] = step(node.attributes, m, g)
            p -= trainer.learning_rate * direction

    return apply


OPTIMIZERS: Mapping[str, Rule] = {
    "minbuild:AdaptLossScale": _adapt_loss_scale,
    "com.microsoft:InplaceClipGradNorm": _clip,
    "com.microsoft:SGDOptimizerV2": _sgd,
    "com.microsoft:AdamWOptimizer": _adamw,
    "minbuild:AdamOptimizer": _adam,
    "minbuild:MomentumOptimizer": _with_one_moment(momentum_step),
    "minbuild:AdagradOptimizer": _with_one_moment(adagrad_step),
    "minbuild:RMSPropOptimizer": _with_one_moment(rmsprop_step),
}
