"""SoftmaxCrossEntropyLoss and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import (
    FLOATS,
    INDICES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    same_as,
)
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.loss.class_labels import (
    PARAMS,
    label_params,
    label_weights,
    reduced,
    reduction_of,
    some_labels,
    variants,
)

_FEW_CLASSES = 64
_LONG = 1024  # kLong of the kernel
_FEATURES = {
    "weights": "one weight per class",
    "ignore": "labels equal to ignore_index do not count",
    "each": "reduction 'none': one loss per label",
    "inner": "scores with dimensions after the classes",
    "many": "enough classes for vectors to pay",
    "long": "a thousand classes or more, next to each other",
}
_HINTS = frozenset({"many", "long"})

loss_kernel = KernelFunction(
    "softmax_cross_entropy",
    ("loss:T=", "log_prob:T=", "scores:T", "labels:I", "weights:T?"),
    params=PARAMS,
    types={"T": FLOATS, "I": INDICES},
    features=_FEATURES,
    hints=_HINTS,
)
grad_kernel = KernelFunction(
    "softmax_cross_entropy_grad",
    ("d_scores:T=", "dy:T", "log_prob:T", "labels:I", "weights:T?"),
    params=PARAMS,
    types={"T": FLOATS, "I": INDICES},
    features=_FEATURES,
    hints=_HINTS,
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    labels = ctx.shape(1) if reduction_of(ctx.attributes) == "none" else ()
    return TensorType(ctx.element(), labels), TensorType(ctx.element(), ctx.shape(0))


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def reference(
    attributes: Mapping[str, Any], scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The loss and the log probabilities, of `scores` [N,C,d...], `labels` [N,d...] and `weights` [C] or None, under
    the reduction in `attributes`."""
    log_prob = _log_softmax(scores)
    weight, safe = label_weights(attributes, labels, weights)
    each = -weight * np.take_along_axis(log_prob, np.expand_dims(safe, 1), axis=1)[:, 0]
    return reduced(attributes, each, weight), log_prob


def grad_reference(
    attributes: Mapping[str, Any],
    dy: np.ndarray,
    log_prob: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """The gradient of the scores [N,C,d...] by that of the loss, `dy`: of `log_prob` [N,C,d...], `labels` [N,d...]
    and `weights` [C] or None, under the reduction in `attributes`; `bias` is added to it."""
    weight, safe = label_weights(attributes, labels, weights)
    one_hot = np.zeros_like(log_prob)
    np.put_along_axis(one_hot, np.expand_dims(safe, 1), 1, axis=1)
    divisor = weight.sum() if reduction_of(attributes) == "mean" and weight.sum() else 1.0
    return np.expand_dims(dy * weight / divisor, 1) * (np.exp(log_prob) - one_hot) + (
        0 if bias is None else bias
    )


def _is_long(ctx: OpContext, scores: int) -> bool:
    classes = ctx.shape(scores)[1]
    return ctx.rank(scores) == 2 and not (isinstance(classes, int) and classes < _LONG)


def _features(ctx: OpContext, scores: int, weights: int) -> tuple[str, ...]:
    classes = ctx.shape(scores)[1]
    asked = {
        "weights": ctx.has(weights),
        "ignore": ctx.attribute("ignore_index") is not None,
        "each": reduction_of(ctx.attributes) == "none",
        "inner": ctx.rank(scores) > 2,
        "many": not (isinstance(classes, int) and classes <= _FEW_CLASSES),
        "long": _is_long(ctx, scores),
    }
    return tuple(name for name, used in asked.items() if used)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    # The kernel needs room for both results even where the graph asks for one of them only: of long rows, for what it
    # makes the loss of.
    shape = ctx.shape(0)
    short = isinstance(shape[1], int) and _is_long(ctx, 0) and ctx.kernels.has("softmax_cross_entropy.long")
    room = TensorType(ctx.element(), shape[:1] if short else (product(shape),))
    loss_room = TensorType(ctx.element(), _infer(ctx)[0].shape)
    call = loss_kernel.call(
        ctx.result(0) or loss_room,
        ctx.result(1) or room,
        ctx.name(0),
        ctx.name(1),
        ctx.name(2),
        types=(ctx.element(0), ctx.element(1)),
        params=label_params(ctx),
        features=_features(ctx, 0, 2),
    )
    return (call,)


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    call = grad_kernel.call(
        ctx.result(),
        ctx.name(0),
        ctx.name(1),
        ctx.name(2),
        ctx.name(3),
        types=(ctx.element(1), ctx.element(2)),
        params=label_params(ctx),
        features=_features(ctx, 1, 3),
    )
    return (call,)


def cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, shape, attributes, weights in variants(random):
        scores = random.standard_normal(shape) * 3
        inputs = (scores, some_labels(random, shape, attributes), weights)
        # Weights are constants where gradients are checked: none flows into them.
        yield TestCase(name, inputs, attributes, frozenset({2}), outputs=2, ulps=8)
        yield TestCase(name + ", loss only", inputs, attributes, outputs=1, ulps=8, smooth=weights is None)
    scores, few = random.standard_normal((4, 3)), np.array([2, 0, 1, 1], np.int32)
    yield TestCase("labels of int32", (scores, few), outputs=2, ulps=8)


def grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, shape, attributes, weights in variants(random):
        log_prob = _log_softmax(random.standard_normal(shape) * 3)
        labels = some_labels(random, shape, attributes)
        dy = random.standard_normal(labels.shape if attributes["reduction"] == "none" else ())
        # Where the label is almost certain, exp(log_prob) - 1 is small and carries the rounding of 1.
        yield TestCase(name, (dy, log_prob, labels, weights), attributes, ulps=256)
        bias = random.standard_normal(shape)
        yield TestCase(name + ", bias", (dy, log_prob, labels, weights, bias), attributes, ulps=64)


def gradient_of_scores(b: GradientBuilder, name: str, domain: str = MICROSOFT, axis: int = 1) -> Value:
    """Of the loss by operator `name`, and of the log probabilities where the model uses them too. `b` is the graph,
    `domain` is that of the gradient operator, `axis` that of the classes."""
    log_prob, given = b.save(1), []
    if b.dy[0]:
        given.append(b.add(name, b.dy[0], log_prob, *b.x[1:], domain=domain, **b.ctx.attributes))
    if len(b.dy) > 1 and b.dy[1]:
        given.append(b.microsoft("LogSoftmaxGrad_13", b.dy[1], log_prob, axis=axis))
    return given[0] + given[1] if len(given) == 2 else given[0]


def _gradient(b: GradientBuilder) -> Results:
    return gradient_of_scores(b, "SoftmaxCrossEntropyLossGrad")


def _grad_body(b: GraphBuilder) -> Results:
    """The value to be added to the gradient follows as a further call."""
    if not b.has(4):
        return None
    gradient = b.microsoft("SoftmaxCrossEntropyLossGrad", *b.x[:4], **b.ctx.attributes)
    return gradient + b.x[4]


def _grad_parts(b: GraphBuilder) -> Results:
    """n + p (-n summed over classes), with p the probabilities and n the gradient of the negative log-likelihood"""
    inputs = (b.x[0], b.x[1], *b.x[2:4])
    n = b.add("NegativeLogLikelihoodLossGrad", *inputs, domain="minbuild", **b.ctx.attributes)
    each = n.sum((1,))
    return n - b.x[1].exp() * each


loss = Op(
    "SoftmaxCrossEntropyLoss",
    since=(12, 13),
    infer=_infer,
    reference=reference,
    lower=_lower,
    kernels=(loss_kernel,),
    in_place=((1, 0),),
    cases=cases,
    gradient=_gradient,
    differentiable=frozenset({0, 1}),
)
grad = Op(
    "SoftmaxCrossEntropyLossGrad",
    domain=MICROSOFT,
    infer=same_as(1),
    reference=grad_reference,
    lower=_lower_grad,
    kernels=(grad_kernel,),
    in_place=((0, 1),),
    decompose=_grad_body,
    decomposes_to=("Add",),
    decompose_for_grad=_grad_parts,
    cases=grad_cases,
)

KERNELS = (loss_kernel, grad_kernel)
OPS = (loss, grad)
