"""SoftmaxCrossEntropyLossInternal and its gradient: what ONNX Runtime trains SoftmaxCrossEntropyLoss with where the
ignored label is an input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import Op, TestCase
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results
from minbuild.ops.loss import softmax_cross_entropy as _loss
from minbuild.ops.loss.class_labels import ignoring
from minbuild.ops.loss.negative_log_likelihood import with_ignored_input


def _with_ignored(attributes: Mapping[str, Any], inputs: Sequence[Any], at: int) -> dict[str, Any]:
    ignored = inputs[at] if len(inputs) > at else None
    return {**attributes, **({} if ignored is None else {"ignore_index": int(ignored)})}


def _body(b: GraphBuilder) -> Results:
    labels, attributes = ignoring(b, b.x[1], 3)
    return b.many(2, "SoftmaxCrossEntropyLoss", b.x[0], labels, *b.x[2:3], **attributes)


def _gradient(b: GradientBuilder) -> Results:
    return _loss.gradient_of_scores(b, "SoftmaxCrossEntropyLossInternalGrad")


def _reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _loss.reference(_with_ignored(attributes, inputs, 3), *inputs[:3])


loss_internal = Op(
    "SoftmaxCrossEntropyLossInternal",
    domain=MICROSOFT,
    reference=_reference,
    decompose=_body,
    decomposes_to=("Cast", "Equal", "SoftmaxCrossEntropyLoss", "Where"),
    cases=with_ignored_input(_loss.cases, 3),
    gradient=_gradient,
    differentiable=frozenset({0, 1}),
)


def _grad_body(b: GraphBuilder) -> Results:
    labels, attributes = ignoring(b, b.x[2], 4)
    gradient = b.microsoft("SoftmaxCrossEntropyLossGrad", *b.x[:2], labels, *b.x[3:4], **attributes)
    return gradient + b.x[5] if b.has(5) else gradient


def _grad_reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> np.ndarray:
    gradient = _loss.grad_reference(_with_ignored(attributes, inputs, 4), *inputs[:4])
    return gradient + (inputs[5] if len(inputs) > 5 else 0)


def _without_bias(random: np.random.Generator) -> Iterable[TestCase]:
    return (case for case in _loss.grad_cases(random) if len(case.inputs) == 4)


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for case in with_ignored_input(_without_bias, 4)(random):
        yield case
        log_prob = case.inputs[1]
        assert log_prob is not None
        inputs = (*case.inputs, random.standard_normal(log_prob.shape))
        yield TestCase(case.name + ", bias", inputs, case.attributes, case.constant, ulps=case.ulps)


loss_internal_grad = Op(
    "SoftmaxCrossEntropyLossInternalGrad",
    domain=MICROSOFT,
    reference=_grad_reference,
    decompose=_grad_body,
    decomposes_to=("Add", "Cast", "Equal", "Where", "com.microsoft:SoftmaxCrossEntropyLossGrad"),
    cases=_grad_cases,
)

OPS = (loss_internal, loss_internal_grad)
