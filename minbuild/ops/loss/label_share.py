"""LabelShare: the weight of a slice's sum in a mean over the labels of the whole batch (planning/micro_batches.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import (
    FLOATS,
    INDICES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
)
from minbuild.ops.loss.class_labels import label_weights

label_share_kernel = KernelFunction(
    "label_share",
    ("share:T=", "labels:I", "weights:T?", "rounds:extent"),
    params=("classes:int", "ignores:int", "ignore_index:int"),
    types={"T": FLOATS, "I": INDICES},
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ctx.element(1), ()),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    """Inputs: labels, a number of the loss's type, rounds (whose content is known), weights of classes."""
    ignored = ctx.attribute("ignore_index")
    call = label_share_kernel.call(
        ctx.result(),
        ctx.name(0),
        ctx.name(3),
        TensorType(ctx.element(0), ctx.dims(2)),
        types=(ctx.element(1), ctx.element(0)),
        params=(int(ctx.attribute("classes")), int(ignored is not None), int(ignored or 0)),
    )
    return (call,)


def reference(
    attributes: Mapping[str, Any],
    labels: np.ndarray,
    like: np.ndarray,
    rounds: np.ndarray,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """`rounds` [1] / (sum of the weights of `labels`); the mean over nothing divides by 1. `like` only has the type,
    `weights` [C] are those of classes, `attributes` have their number and the ignored label."""
    total = label_weights(attributes, labels, weights)[0].sum()
    return np.asarray(int(rounds.ravel()[0]) / (total or 1.0))


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((6,), (2, 3, 5)):
        for dtype in (np.int32, np.int64):
            for ignored in (None, -100, 1):
                labels = random.integers(0, 4, shape).astype(dtype)
                if ignored == -100:
                    labels.ravel()[::2] = -100
                attributes = {"classes": 4} | ({} if ignored is None else {"ignore_index": ignored})
                for weights in (None, random.uniform(0.5, 2, 4)):
                    inputs = (labels, np.zeros(()), np.array([shape[0]]), weights)
                    kind = "plain" if weights is None else "weighted"
                    name = f"{list(shape)} {np.dtype(dtype)} ignore {ignored}, {kind}"
                    yield TestCase(name, inputs, attributes, frozenset({1, 2}), ulps=16, smooth=False)
    none = (np.full(3, -100), np.zeros(()), np.array([3]))
    yield TestCase(
        "all ignored", none, {"classes": 2, "ignore_index": -100}, frozenset({1, 2}), ulps=0, smooth=False
    )


label_share = Op(
    "LabelShare",
    domain="minbuild",
    infer=_infer,
    reference=reference,
    folds=False,
    lower=_lower,
    kernels=(label_share_kernel,),
    cases=_cases,
)

KERNELS = (label_share_kernel,)
OPS = (label_share,)
