"""NonMaxSuppression of boxes and scores that are known when the trainer is built; and of data, at the bound of its size
(authoring/masked_selection.py writes it)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import (
    FLOAT,
    INT64,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
)

bounded_kernel = KernelFunction(
    "non_max_suppression",
    (
        "places:int64=",
        "count:int64=",
        "boxes:T",
        "scores:T",
        "overlap:T?",
        "lowest:T?",
        "left:scratch",
        "layout:extent",
    ),
    params=("center:int",),
    types={"T": (FLOAT,)},
)


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
            "its result's size depends on data: boxes and scores must be constants. Make the artifacts here from the "
            "forward model; or take the loss of the values before it, as it has no gradient, and leave it to the "
            "program that uses the detections"
        )
    return (TensorType(INT64, _reference(ctx.attributes, *inputs).shape),)  # type: ignore[arg-type]


non_max_suppression = Op("NonMaxSuppression", since=(10, 11), infer=_infer, reference=_reference)


# ------------------------------------------------------------------------------------------- of data


def most_places(boxes: Sequence[Dim], scores: Sequence[Dim], most: int) -> Dim:
    """The rows that a result may have at the most, of `boxes` [B,N,4] and `scores` [B,C,N], `most` for each class."""
    return product((*scores[:2], _of_a_class(boxes[1], most)))


def _of_a_class(size: Dim, most: int) -> Dim:
    return min(size, most) if isinstance(size, int) else most


def _bounded_infer(ctx: OpContext) -> Sequence[TensorType]:
    rows = most_places(ctx.shape(0), ctx.shape(1), int(ctx.attribute("most")))
    return TensorType(INT64, (rows, 3)), TensorType(INT64, (1,))


def _bounded_reference(
    attributes: Mapping[str, Any],
    boxes: np.ndarray,
    scores: np.ndarray,
    overlap: np.ndarray | None = None,
    lowest: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """[P,3], the rows that are found and then the first one again, and how many they are."""
    found = _reference(
        attributes, boxes, scores, most=np.array(attributes["most"]), overlap=overlap, lowest_score=lowest
    )
    rows = int(most_places(boxes.shape, scores.shape, int(attributes["most"])))  # type: ignore[arg-type]
    again = found[:1] if len(found) else np.zeros((1, 3), np.int64)
    return np.concatenate((found, np.repeat(again, rows - len(found), 0))), np.array([len(found)])


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    (batch, classes, size), most = ctx.shape(1), int(ctx.attribute("most"))
    layout = (batch, classes, size, _of_a_class(size, most))
    call = bounded_kernel.call(
        *(ctx.result(0), ctx.result(1), ctx.name(0), ctx.name(1)),
        *(ctx.name(i) if ctx.has(i) else None for i in (2, 3)),
        TensorType(ElementType.UINT8, (size,)),
        TensorType(ElementType.UINT8, layout),
        types=(ctx.element(),),
        params=(int(ctx.attribute("center_point_box", 0)),),
    )
    return (call,)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for batch, classes, size, most in ((1, 1, 1, 1), (2, 3, 12, 4), (1, 2, 9, 20)):
        for center in (0, 1):
            # On a grid, whose overlaps are ratios of small numbers, apart from the limit in any precision.
            boxes = random.integers(0, 9, (batch, size, 4)).astype(np.float32)
            scores = random.integers(0, 8, (batch, classes, size)).astype(np.float32) / 8
            name = f"{batch} {classes} {size} {most} {center}"
            attributes = {"most": most, "center_point_box": center}
            limits = np.array([0.31], np.float32), np.array(0.4, np.float32)
            yield TestCase(name, (boxes, scores, *limits), attributes, outputs=2, smooth=False)
            yield TestCase(f"{name} any score", (boxes, scores), attributes, outputs=2, smooth=False)
            none = np.array([2], np.float32)
            yield TestCase(
                f"{name} none", (boxes, scores, limits[0], none), attributes, outputs=2, smooth=False
            )


bounded_non_max_suppression = Op(
    "NonMaxSuppression",
    domain="minbuild",
    infer=_bounded_infer,
    reference=_bounded_reference,
    lower=_lower,
    kernels=(bounded_kernel,),
    cases=_cases,
    differentiable=frozenset(),
)

KERNELS = (bounded_kernel,)
OPS = (non_max_suppression, bounded_non_max_suppression)
