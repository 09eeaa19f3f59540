"""Losses of ONNX Runtime's older training operators: SoftmaxCrossEntropy against probabilities, and
SparseSoftmaxCrossEntropy against labels that may have weights of their own. The classes are the last axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ir.dims import product
from minbuild.ops.core.definition import INT64, Op, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.loss.class_labels import reduction_of
from minbuild.ops.loss.softmax_cross_entropy import gradient_of_scores


def _is_mean(b: GraphBuilder) -> bool:
    """ONNX Runtime computes nothing sensible without a reduction."""
    reduction = reduction_of(b.ctx.attributes)
    if reduction not in ("mean", "sum"):
        raise UnsupportedUse(f"reduction '{reduction}' is neither mean nor sum")
    return reduction == "mean"


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


# ---------------------------------------------------------------------------------------- SoftmaxCrossEntropy


def _dense_body(b: GraphBuilder) -> Results:
    """-mean(sum over classes of label log softmax)"""
    rank = b.ctx.rank()
    log_prob = b.add("LogSoftmax", b.x[0], axis=-1)
    each = (log_prob * b.x[1]).sum((rank - 1,), False)
    reduce = "ReduceMean" if _is_mean(b) else "ReduceSum"
    return -b.reduce(reduce, each, tuple(range(rank - 1)), False), log_prob


def _per_row(b: GraphBuilder, dy: Value, i: int) -> Value:
    """The gradient of each row of input `i` where `dy` is that of the loss."""
    if not _is_mean(b):
        return dy
    classes = b.add("Gather", b.x[i].shape(), b.constant(-1, INT64))
    return b.microsoft("Scale", dy, b.x[i].size() / classes, scale_down=1)


def _dense_gradient(b: GradientBuilder) -> Results:
    scores = gradient_of_scores(b, "SoftmaxCrossEntropyGrad", axis=-1)
    if 1 not in b.requires_grad or not b.dy[0]:
        return scores
    return (scores, b.save(1) * -_per_row(b, b.dy[0], 0))


def _dense_reference(
    attributes: Mapping[str, Any], x: np.ndarray, label: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    log_prob = _log_softmax(x)
    rows = product(x.shape[:-1]) if reduction_of(attributes) == "mean" else 1
    return np.asarray(-(log_prob * label).sum() / rows), log_prob


_SHAPES: tuple[tuple[int, ...], ...] = ((1, 2), (6, 10), (2, 3, 5), (7,))


def _dense_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in _SHAPES:
        for reduction in ("mean", "sum"):
            label = np.exp(_log_softmax(random.standard_normal(shape)))
            inputs, attributes = (random.standard_normal(shape) * 3, label), {"reduction": reduction}
            for count in (1, 2):
                yield TestCase(
                    f"{list(shape)} {reduction}, {count}", inputs, attributes, outputs=count, ulps=16
                )


softmax_cross_entropy = Op(
    "SoftmaxCrossEntropy",
    domain=MICROSOFT,
    reference=_dense_reference,
    decompose=_dense_body,
    decomposes_to=("LogSoftmax", "Mul", "Neg", "ReduceMean", "ReduceSum"),
    cases=_dense_cases,
    gradient=_dense_gradient,
    differentiable=frozenset({0, 1}),
)


def _dense_grad_body(b: GraphBuilder) -> Results:
    """dy (softmax - label): ONNX Runtime takes it that the labels of a row add up to 1."""
    away = b.x[1].exp() - b.x[2]
    return away * _per_row(b, b.x[0], 1)


def _dense_grad_reference(
    attributes: Mapping[str, Any], dy: np.ndarray, log_prob: np.ndarray, label: np.ndarray
) -> np.ndarray:
    rows = product(label.shape[:-1]) if reduction_of(attributes) == "mean" else 1
    return np.asarray((np.exp(log_prob) - label) * dy / rows)


def _dense_grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in _SHAPES:
        for reduction in ("mean", "sum"):
            log_prob, label = (_log_softmax(random.standard_normal(shape)) for _ in range(2))
            inputs = (np.asarray(random.standard_normal()), log_prob, np.exp(label))
            yield TestCase(f"{list(shape)} {reduction}", inputs, {"reduction": reduction}, ulps=64)


softmax_cross_entropy_grad = Op(
    "SoftmaxCrossEntropyGrad",
    domain=MICROSOFT,
    reference=_dense_grad_reference,
    decompose=_dense_grad_body,
    decomposes_to=("Div", "Exp", "Gather", "Mul", "Sub", "com.microsoft:Scale"),
    cases=_dense_grad_cases,
)

# ---------------------------------------------------------------------------------- SparseSoftmaxCrossEntropy


def _rows(b: GraphBuilder, i: int) -> Value:
    """Input `i` as a matrix with a row for each label."""
    return b.add("Flatten", b.x[i], axis=b.ctx.rank(i) - 1)


def _list(b: GraphBuilder, i: int) -> Value:
    """Input `i` in one dimension."""
    return b.x[i].reshape([-1])


def _as(b: GraphBuilder, i: int, x: Value) -> Value:
    """`x` in the shape of input `i`."""
    return x.reshape_like(b.x[i])


def _sparse_body(b: GraphBuilder) -> Results:
    mean = _is_mean(b)
    reduction = "none" if b.has(2) else reduction_of(b.ctx.attributes)
    inputs = (_rows(b, 0), _list(b, 1))
    loss, log_prob = b.many(2, "SoftmaxCrossEntropyLoss", *inputs, reduction=reduction)
    if b.has(2):
        weight = _list(b, 2)
        loss = (loss * weight).sum((0,), False)
        loss = loss / weight.sum((0,), False) if mean else loss
    return loss, _as(b, 0, log_prob)


def _sparse_gradient(b: GradientBuilder) -> Results:
    return gradient_of_scores(b, "SparseSoftmaxCrossEntropyGrad", "", -1)


def _sparse_grad_body(b: GraphBuilder) -> Results:
    mean, dy = _is_mean(b), b.x[0]
    reduction = "none" if b.has(3) else reduction_of(b.ctx.attributes)
    if b.has(3):
        weight = _list(b, 3)
        dy = weight * dy
        dy = dy / weight.sum((0,), False) if mean else dy
    inputs = (dy, _rows(b, 1), _list(b, 2))
    return _as(b, 1, b.microsoft("SoftmaxCrossEntropyLossGrad", *inputs, reduction=reduction))


def _sparse_weights(
    attributes: Mapping[str, Any], labels: np.ndarray, weight: np.ndarray | None
) -> np.ndarray:
    """The weight of each label, its share of a mean included."""
    each = np.ones(labels.shape) if weight is None else weight
    return np.asarray(each / each.sum() if reduction_of(attributes) == "mean" else each)


def _sparse_reference(
    attributes: Mapping[str, Any], x: np.ndarray, labels: np.ndarray, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    log_prob = _log_softmax(x)
    chosen = np.take_along_axis(log_prob, labels[..., None], -1)[..., 0]
    return np.asarray(-(chosen * _sparse_weights(attributes, labels, weight)).sum()), log_prob


def _sparse_grad_reference(
    attributes: Mapping[str, Any],
    dy: np.ndarray,
    log_prob: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None = None,
) -> np.ndarray:
    one_hot = np.eye(log_prob.shape[-1])[labels]
    factor = dy * _sparse_weights(attributes, labels, weight)
    return np.asarray((np.exp(log_prob) - one_hot) * factor[..., None])


def _sparse_cases(gradient: bool) -> Callable[..., Iterable[TestCase]]:
    """Weights are constants: no gradient flows into them."""

    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for shape in _SHAPES:
            for reduction in ("mean", "sum"):
                scores = random.standard_normal(shape) * 2
                labels = np.asarray(random.integers(0, shape[-1], shape[:-1]))
                for weight in (None, np.asarray(random.uniform(0.5, 2, shape[:-1]))):
                    inputs: tuple[np.ndarray | None, ...] = (scores, labels, weight)
                    if gradient:
                        dy = np.asarray(random.standard_normal())
                        inputs = (dy, _log_softmax(scores), labels, weight)
                    name = f"{list(shape)} {reduction} {'plain' if weight is None else 'weighted'}"
                    constant, count = frozenset({len(inputs) - 1}), 1 if gradient else 2
                    yield TestCase(name, inputs, {"reduction": reduction}, constant, outputs=count, ulps=64)

    return cases


sparse_softmax_cross_entropy = Op(
    "SparseSoftmaxCrossEntropy",
    since=(9,),
    reference=_sparse_reference,
    decompose=_sparse_body,
    decomposes_to=("Div", "Mul", "ReduceSum", "SoftmaxCrossEntropyLoss"),
    cases=_sparse_cases(gradient=False),
    gradient=_sparse_gradient,
    differentiable=frozenset({0, 1}),
)
sparse_softmax_cross_entropy_grad = Op(
    "SparseSoftmaxCrossEntropyGrad",
    since=(9,),
    reference=_sparse_grad_reference,
    decompose=_sparse_grad_body,
    decomposes_to=("Div", "Mul", "ReduceSum", "com.microsoft:SoftmaxCrossEntropyLossGrad"),
    cases=_sparse_cases(gradient=True),
)

OPS = (
    softmax_cross_entropy,
    softmax_cross_entropy_grad,
    sparse_softmax_cross_entropy,
    sparse_softmax_cross_entropy_grad,
)
