"""Shared by losses over class labels: reductions, ignored labels, weights per class, and test cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import INT64, OpContext, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Value

REDUCTIONS = ("none", "mean", "sum")
PARAMS = ("reduction:int", "ignores:int", "ignore_index:int")
_NEVER = np.iinfo(np.int32).min  # no label


def reduction_of(attributes: Mapping[str, Any]) -> str:
    return str(attributes.get("reduction", "mean"))


def label_params(ctx: OpContext) -> tuple[int, int, int]:
    """The parameters of a kernel: PARAMS."""
    ignored, reduction = ctx.attribute("ignore_index"), reduction_of(ctx.attributes)
    if reduction not in REDUCTIONS:
        raise UnsupportedUse(f"reduction '{reduction}' is none of {', '.join(REDUCTIONS)}")
    if ignored is not None and not -(2**31) <= ignored < 2**31:
        raise UnsupportedUse(f"ignore_index {ignored} is no number of 32 bits")
    return REDUCTIONS.index(reduction), int(ignored is not None), int(ignored or 0)


def label_weights(
    attributes: Mapping[str, Any], labels: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Weight of every label (0 where ignored), and the labels with ignored ones replaced by class 0. `attributes` are
    the operator's, `labels` [N,d...] class numbers, `weights` [C] one per class, or None."""
    counted = labels != attributes.get("ignore_index", np.iinfo(np.int64).min)
    safe = np.where(counted, labels, 0)
    return np.where(counted, 1.0 if weights is None else weights[safe], 0.0), safe


def reduced(attributes: Mapping[str, Any], each: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The losses `each`, which are weighted already, under the reduction. `attributes` are the operator's, `weight`
    has the shape of `each`."""
    if reduction_of(attributes) == "none":
        return each
    total = each.sum()
    if reduction_of(attributes) == "mean":
        total = total / weight.sum() if weight.sum() else 0.0 * total
    return np.asarray(total)


def ignoring(b: GraphBuilder, labels: Value, i: int) -> tuple[Value, dict[str, Any]]:
    """Labels and attributes for an operator that ignores the label given as input `i`, a scalar: by its attribute
    where the number is known, else with such labels replaced by one that is never used. `b` is the graph, `labels`
    are [N,d...]."""
    attributes: dict[str, Any] = {"reduction": reduction_of(b.ctx.attributes)}
    if not b.has(i):
        return labels, attributes
    known = b.ctx.content(i)
    if known is not None:
        return labels, attributes | {"ignore_index": int(known.item())}
    never = b.constant(_NEVER, INT64)
    wide = labels.cast(INT64)
    masked = b.where(wide.equal(b.x[i]), never, wide)
    return masked, attributes | {"ignore_index": _NEVER}


def variants(
    random: np.random.Generator,
) -> Iterable[tuple[str, tuple[int, ...], dict[str, Any], np.ndarray | None]]:
    """Name, shape of the scores, attributes and weights of test cases."""
    for shape in ((1, 2), (5, 3), (32, 10), (2, 71), (3, 4, 2, 3)):
        for reduction in REDUCTIONS:
            for ignore in (None, 1, -100):
                weights = None if ignore == 1 else random.uniform(0.5, 2, shape[1])
                attributes = {"reduction": reduction} | ({} if ignore is None else {"ignore_index": ignore})
                yield f"{list(shape)} {reduction} ignore {ignore}", shape, attributes, weights


def some_labels(
    random: np.random.Generator, shape: tuple[int, ...], attributes: Mapping[str, Any]
) -> np.ndarray:
    """Class numbers for scores of `shape` [N,C,d...], some of them to be ignored as `attributes` say; `random` draws
    them."""
    labels = random.integers(0, shape[1], shape[:1] + shape[2:])
    if attributes.get("ignore_index") == -100:
        labels.ravel()[::2] = -100
    return labels


OPS: tuple[()] = ()
