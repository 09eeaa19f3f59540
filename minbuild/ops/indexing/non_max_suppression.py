"""NonMaxSuppression of boxes and scores that are known when the trainer is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import INT64, Op, OpContext, UnsupportedUse


def _corners(boxes: np.ndarray, center: bool) -> np.ndarray:
    """Boxes [N,4] as (low, low, high, high), whichever two corners, or center and size, are given."""
    if center:
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return np.concatenate((middle - half, middle + half), 1)
    return np.concatenate((np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])), 1)


def _overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of a box with each of the others; 0 where the union is empty."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0), 1)
    union = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], 1) - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def _number(array: np.ndarray | None, default: float) -> float:
    return default if array is None else float(array.reshape(-1)[0])


def _reference(
    attributes: Mapping[str, Any],
    boxes: np.ndarray,
    scores: np.ndarray,
    most: np.ndarray | None = None,
    overlap: np.ndarray | None = None,
    lowest_score: np.ndarray | None = None,
) -> np.ndarray:
    """[K,3]: batch, class and box. Of equal scores the first box is taken first."""
    count, limit, lowest = int(_number(most, 0)), _number(overlap, 0.0), _number(lowest_score, -np.inf)
    found: list[tuple[int, int, int]] = []
    for batch in range(scores.shape[0]):
        corners = _corners(boxes[batch].astype(np.float64), bool(attributes.get("center_point_box", 0)))
        for label in range(scores.shape[1]):
            of = scores[batch, label]
            left = [int(i) for i in np.argsort(-of, kind="stable") if of[i] > lowest]
            taken: list[int] = []
            while left and len(taken) < count:
                taken.append(left.pop(0))
                near = _overlaps(corners[taken[-1]], corners[left]) > limit
                left = [i for i, drop in zip(left, near, strict=True) if not drop]
            found += [(batch, label, i) for i in taken]
    return np.array(found, np.int64).reshape(-1, 3)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    inputs = tuple(ctx.content(i) for i in range(len(ctx.inputs)))
    given = [c for i, c in enumerate(inputs) if ctx.has(i)]
    if any(c is None or c.dtype == object for c in given):
        raise UnsupportedUse(
            "its result's size depends on data: boxes and scores must be constants. It has no gradient: take the loss "
            "of the values before it, and leave it to the program that uses the detections"
        )
    return (TensorType(INT64, _reference(ctx.attributes, *inputs).shape),)  # type: ignore[arg-type]


non_max_suppression = Op("NonMaxSuppression", since=(10, 11), infer=_infer, reference=_reference)

OPS = (non_max_suppression,)
