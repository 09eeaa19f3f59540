"""NegativeLogLikelihoodLoss and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import (
    FLOATS,
    INDICES,
    INT64,
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
    ignoring,
    label_params,
    label_weights,
    reduced,
    reduction_of,
    some_labels,
    variants,
)

_TYPES = {"T": FLOATS, "I": INDICES}
loss_kernel = KernelFunction(
    "nll_loss", ("loss:T=", "x:T", "labels:I", "weights:T?"), params=PARAMS, types=_TYPES
)
grad_kernel = KernelFunction(
    "nll_loss_grad", ("dx:T=", "dy:T", "labels:I", "weights:T?"), params=PARAMS, types=_TYPES
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ctx.element(), ctx.shape(1) if reduction_of(ctx.attributes) == "none" else ()),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    names = (ctx.name(0), ctx.name(1), ctx.name(2))
    types = (ctx.element(0), ctx.element(1))
    return (loss_kernel.call(ctx.result(), *names, types=types, params=label_params(ctx)),)


def _reference(
    attributes: Mapping[str, Any], x: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    weight, safe = label_weights(attributes, labels, weights)
    chosen = np.take_along_axis(x, np.expand_dims(safe, 1), axis=1)[:, 0]
    return reduced(attributes, -weight * chosen, weight)


def _gradient(b: GradientBuilder) -> Results:
    return _backward(b, b.x[1], dict(b.ctx.attributes))


def _backward(b: GradientBuilder, labels: Value, attributes: dict[str, Any]) -> Value:
    inputs = (b.dy[0], b.x[0], labels, *b.x[2:3])
    return b.add("NegativeLogLikelihoodLossGrad", *inputs, domain="minbuild", **attributes)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    """Weights are constants where gradients are checked: none flows into them."""
    for name, shape, attributes, weights in variants(random):
        x, labels = random.uniform(-5, -0.1, shape), some_labels(random, shape, attributes)
        yield TestCase(name, (x, labels, weights), attributes, frozenset({2}), ulps=8)
    for dtype in (np.int32, np.int64):
        inputs = (random.standard_normal((4, 3)), np.array([2, 0, 1, 1], dtype), random.uniform(1, 2, 3))
        yield TestCase(f"labels of {np.dtype(dtype)}", inputs, ulps=8, smooth=False)


negative_log_likelihood_loss = Op(
    "NegativeLogLikelihoodLoss",
    since=(12, 13, 22),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(loss_kernel,),
    cases=_cases,
    gradient=_gradient,
)

# ---------------------------------------------------------------------------------------------------- gradient


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    names = (ctx.name(0), ctx.name(2), ctx.name(3))  # of the scores only the shape matters
    types = (ctx.element(1), ctx.element(2))
    return (grad_kernel.call(ctx.result(), *names, types=types, params=label_params(ctx)),)


def _grad_reference(
    attributes: Mapping[str, Any],
    dy: np.ndarray,
    x: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    weight, safe = label_weights(attributes, labels, weights)
    divisor = weight.sum() if reduction_of(attributes) == "mean" and weight.sum() else 1.0
    one_hot = np.moveaxis(np.eye(x.shape[1])[safe], -1, 1)
    return np.asarray(-np.expand_dims(dy * weight / divisor, 1) * one_hot)


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, shape, attributes, weights in variants(random):
        labels = some_labels(random, shape, attributes)
        dy = np.asarray(random.standard_normal(labels.shape if attributes["reduction"] == "none" else ()))
        inputs = (dy, random.standard_normal(shape), labels, weights)
        yield TestCase(name, inputs, attributes, frozenset({3}), ulps=8)


def _grad_gradient(b: GradientBuilder) -> Results:
    """The loss is linear in the scores, so its gradient in dy is the loss of what comes back; the scores' own is 0."""
    inputs = (b.dy[0], *b.x[2:])
    return b.add("NegativeLogLikelihoodLoss", *inputs, **b.ctx.attributes)


negative_log_likelihood_loss_grad = Op(
    "NegativeLogLikelihoodLossGrad",
    domain="minbuild",
    infer=same_as(1),
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(grad_kernel,),
    cases=_grad_cases,
    gradient=_grad_gradient,
)

# ----------------------------------------------------------------------------- with the ignored label as an input


def _internal_body(b: GraphBuilder) -> Results:
    labels, attributes = ignoring(b, b.x[1], 3)
    return b.add("NegativeLogLikelihoodLoss", b.x[0], labels, *b.x[2:3], **attributes)


def _internal_gradient(b: GradientBuilder) -> Results:
    return _backward(b, *ignoring(b, b.x[1], 3))


def _internal_reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> np.ndarray:
    ignored = {"ignore_index": int(inputs[3])} if len(inputs) > 3 else {}
    return _reference({**attributes, **ignored}, *inputs[:3])


def with_ignored_input(
    cases: Callable[..., Iterable[TestCase]], at: int
) -> Callable[..., Iterable[TestCase]]:
    """Cases whose attribute `ignore_index` is the input `at` instead: once known beforehand, once not."""

    def made(random: np.random.Generator) -> Iterable[TestCase]:
        for case in cases(random):
            attributes = {k: v for k, v in case.attributes.items() if k != "ignore_index"}
            ignored = case.attributes.get("ignore_index")
            inputs = (*case.inputs, *(None,) * (at - len(case.inputs)))
            for constant in (True, False) if ignored is not None else ():
                name = f"{case.name}, {'known' if constant else 'as an input'}"
                given = (*inputs, np.array(ignored, INT64.dtype))
                known = case.constant | ({at} if constant else set())
                yield TestCase(
                    name, given, attributes, known, case.outputs, ulps=case.ulps, smooth=case.smooth
                )

    return made


def _internal_op(name: str) -> Op:
    return Op(
        name,
        domain=MICROSOFT,
        reference=_internal_reference,
        decompose=_internal_body,
        decomposes_to=("Cast", "Equal", "NegativeLogLikelihoodLoss", "Where"),
        cases=with_ignored_input(_cases, 3),
        gradient=_internal_gradient,
    )


internal = _internal_op("NegativeLogLikelihoodLossInternal")
internal_2 = _internal_op("NegativeLogLikelihoodLossInternal2")

KERNELS = (loss_kernel, grad_kernel)
OPS = (negative_log_likelihood_loss, negative_log_likelihood_loss_grad, internal, internal_2)
