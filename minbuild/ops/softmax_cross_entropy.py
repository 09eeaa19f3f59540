"""SoftmaxCrossEntropyLoss and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.dims import product
from minbuild.model import TensorType
from minbuild.ops.definition import FLOATS, INDICES, Case, KernelFunction, Launch, Op, Site

_REDUCTIONS = ("none", "mean", "sum")
_FEW_CLASSES = 64
_PARAMS = ("reduction", "ignores", "ignore_index")
_FEATURES = {
    "weights": "one weight per class",
    "ignore": "labels equal to ignore_index do not count",
    "each": "reduction 'none': one loss per label",
    "inner": "scores with dimensions after the classes",
    "many": "so many classes that vectors pay",
}

loss_kernel = KernelFunction(
    "softmax_cross_entropy",
    ("loss:T=", "log_prob:T=", "scores:T", "labels:I", "weights:T?"),
    params=_PARAMS,
    types={"T": FLOATS, "I": INDICES},
    features=_FEATURES,
)
grad_kernel = KernelFunction(
    "softmax_cross_entropy_grad",
    ("d_scores:T=", "dy:T", "log_prob:T", "labels:I", "weights:T?"),
    params=_PARAMS,
    types={"T": FLOATS, "I": INDICES},
    features=_FEATURES,
)


def _reduction(attributes: Mapping[str, Any]) -> str:
    return str(attributes.get("reduction", "mean"))


def _infer(site: Site) -> Sequence[TensorType]:
    labels = site.shape(1) if _reduction(site.attributes) == "none" else ()
    return TensorType(site.element(), labels), TensorType(site.element(), site.shape(0))


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _weights(
    attributes: Mapping[str, Any], labels: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Weight of every label (0 where ignored), and the labels with ignored ones replaced by class 0."""
    counted = labels != attributes.get("ignore_index", np.iinfo(np.int64).min)
    safe = np.where(counted, labels, 0)
    return np.where(counted, 1.0 if weights is None else weights[safe], 0.0), safe


def _reference(
    attributes: Mapping[str, Any], scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    log_prob = _log_softmax(scores)
    weight, safe = _weights(attributes, labels, weights)
    each = -weight * np.take_along_axis(log_prob, np.expand_dims(safe, 1), axis=1)[:, 0]
    if _reduction(attributes) == "none":
        return each, log_prob
    total = each.sum()
    if _reduction(attributes) == "mean":
        total = total / weight.sum() if weight.sum() else 0.0 * total
    return np.asarray(total), log_prob


def _grad_reference(
    attributes: Mapping[str, Any],
    dy: np.ndarray,
    log_prob: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    weight, safe = _weights(attributes, labels, weights)
    one_hot = np.moveaxis(np.eye(log_prob.shape[1])[safe], -1, 1)
    divisor = weight.sum() if _reduction(attributes) == "mean" and weight.sum() else 1.0
    return np.expand_dims(dy * weight / divisor, 1) * (np.exp(log_prob) - one_hot)


def _params(site: Site) -> tuple[int, int, int]:
    ignored = site.attribute("ignore_index")
    return _REDUCTIONS.index(_reduction(site.attributes)), int(ignored is not None), int(ignored or 0)


def _features(site: Site, scores: int, weights: int) -> tuple[str, ...]:
    classes = site.shape(scores)[1]
    asked = {
        "weights": site.has(weights),
        "ignore": site.attribute("ignore_index") is not None,
        "each": _reduction(site.attributes) == "none",
        "inner": site.rank(scores) > 2,
        "many": not (isinstance(classes, int) and classes <= _FEW_CLASSES),
    }
    return tuple(name for name, wanted in asked.items() if wanted)


def _select(site: Site) -> Sequence[Launch]:
    # The kernel needs room for the log probabilities even where the graph does not ask for them.
    room = TensorType(site.element(), (product(site.shape(0)),))
    launch = loss_kernel.launch(
        site.result(0),
        site.result(1) or room,
        site.name(0),
        site.name(1),
        site.name(2),
        types=(site.element(0), site.element(1)),
        params=_params(site),
        features=_features(site, 0, 2),
    )
    return (launch,)


def _grad_select(site: Site) -> Sequence[Launch]:
    launch = grad_kernel.launch(
        site.result(),
        site.name(0),
        site.name(1),
        site.name(2),
        site.name(3),
        types=(site.element(1), site.element(2)),
        params=_params(site),
        features=_features(site, 1, 3),
    )
    return (launch,)


def _variants(
    random: np.random.Generator,
) -> Iterable[tuple[str, tuple[int, ...], dict[str, Any], np.ndarray | None]]:
    for shape in ((1, 2), (5, 3), (32, 10), (2, 71), (3, 4, 2, 3)):
        for reduction in _REDUCTIONS:
            for ignore in (None, 1, -100):
                weights = None if ignore == 1 else random.uniform(0.5, 2, shape[1])
                attributes = {"reduction": reduction} | ({} if ignore is None else {"ignore_index": ignore})
                yield f"{list(shape)} {reduction} ignore {ignore}", shape, attributes, weights


def _labels(random: np.random.Generator, shape: tuple[int, ...], attributes: Mapping[str, Any]) -> np.ndarray:
    labels = random.integers(0, shape[1], shape[:1] + shape[2:])
    if attributes.get("ignore_index") == -100:
        labels.ravel()[::2] = -100
    return labels


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for name, shape, attributes, weights in _variants(random):
        scores = random.standard_normal(shape) * 3
        inputs = (scores, _labels(random, shape, attributes), weights)
        yield Case(name, inputs, attributes, outputs=2, ulps=8)
        yield Case(name + ", loss only", inputs, attributes, outputs=1, ulps=8)


def _grad_cases(random: np.random.Generator) -> Iterable[Case]:
    for name, shape, attributes, weights in _variants(random):
        log_prob = _log_softmax(random.standard_normal(shape) * 3)
        labels = _labels(random, shape, attributes)
        dy = random.standard_normal(labels.shape if attributes["reduction"] == "none" else ())
        # Where the label is almost certain, exp(log_prob) - 1 is small and carries the rounding of 1.
        yield Case(name, (dy, log_prob, labels, weights), attributes, ulps=64)


def _like_scores(site: Site) -> Sequence[TensorType]:
    return (TensorType(site.element(1), site.shape(1)),)


loss = Op(
    "SoftmaxCrossEntropyLoss",
    since=(12, 13),
    infer=_infer,
    reference=_reference,
    select=_select,
    cases=_cases,
)
grad = Op(
    "SoftmaxCrossEntropyLossGrad",
    domain="com.microsoft",
    infer=_like_scores,
    reference=_grad_reference,
    select=_grad_select,
    in_place=((0, 1),),
    cases=_grad_cases,
)
