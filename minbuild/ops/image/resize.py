"""Resize and its gradient: one weighted sum per resized axis, by tables made when the trainer is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape
from minbuild.ir.dims import Dim
from minbuild.ops.core.definition import BOOL, FLOAT, FLOATS, HALVES, Op, UnsupportedUse
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.image.integer_scale import DECOMPOSES_TO, resize_by_whole_factor
from minbuild.ops.image.interpolation import Stretch
from minbuild.ops.image.resample import add_resample
from minbuild.ops.image.resize_cases import resize_cases, resize_grad_cases

_OPSET_10 = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "simple"}


def _absent(content: np.ndarray | None) -> bool:
    return content is None or content.size == 0


def _stretches(
    attributes: Mapping[str, Any],
    shape: Shape,
    roi: np.ndarray | None,
    scales: np.ndarray | None,
    sizes: Sequence[Dim] | None,
    made: Shape | None = None,
) -> list[Stretch]:
    """The axes that change, those that shrink most first, so that little is computed. Scales are floats, as ONNX has
    them; sizes may be symbolic where they equal the input's. `made` is the shape of the result where it is known."""
    rank = len(shape)
    axes = [int(a) % rank for a in attributes.get("axes", range(rank))]
    crops = attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    if crops and (roi is None or roi.size != 2 * len(axes)):
        raise UnsupportedUse("tf_crop_and_resize needs a roi that is known when the trainer is built")
    given: Sequence[Any] | None = scales.ravel().tolist() if scales is not None else sizes
    if given is None or len(given) != len(axes):
        raise UnsupportedUse(
            f"needs one scale or size for each of {len(axes)} axes, known when the trainer is built"
        )
    ends = roi.ravel().tolist() if crops and roi is not None else [0.0] * len(axes) + [1.0] * len(axes)
    seen = {a: (float(ends[i]), float(ends[i + len(axes)])) for i, a in enumerate(axes)}
    found = []
    common = _common_scale(attributes, shape, axes, given) if scales is None else None
    for axis, target in zip(axes, given, strict=True):
        size = shape[axis]
        same = target == 1 if scales is not None else target == size and common is None
        if same and seen[axis] == (0.0, 1.0):
            continue
        if not isinstance(size, int) or not isinstance(target, (int, float)):
            raise UnsupportedUse(
                f"resizes axis {axis} of size {size}, which must be known when the trainer is built"
            )
        if common is not None:
            found.append(Stretch(axis, size, int(common * size + 0.5), float(np.float32(common)), seen[axis]))
        elif scales is not None:
            outputs = made[axis] if made else int(np.floor(np.float32(target) * np.float32(size)))
            found.append(Stretch(axis, size, outputs, float(target), seen[axis]))  # type: ignore[arg-type]
        else:
            found.append(Stretch(axis, size, int(target), target / max(size, 1), seen[axis]))
    if any(s.size == 0 or s.scale <= 0 for s in found):
        raise UnsupportedUse(f"resizes an axis of {list(shape)} that has no elements, or to none")
    return sorted(found, key=lambda s: (s.outputs / s.size, -s.axis))


def _common_scale(
    attributes: Mapping[str, Any], shape: Shape, axes: Sequence[int], sizes: Sequence[Any]
) -> float | None:
    """The scale of all axes where the aspect ratio is kept."""
    policy = attributes.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return None
    pairs = [(target, shape[axis]) for axis, target in zip(axes, sizes, strict=True)]
    if not all(isinstance(d, int) and d for pair in pairs for d in pair):
        raise UnsupportedUse(
            f"keep_aspect_ratio_policy {policy} needs sizes that are known when the trainer is built"
        )
    ratios = [target / size for target, size in pairs]
    return min(ratios) if policy == "not_larger" else max(ratios)


def _asked(b: GraphBuilder) -> tuple[dict[str, Any], list[Stretch]]:
    """The attributes, those of opset 10 made explicit, and what is to be done to the axes."""
    ctx, attributes = b.ctx, dict(b.ctx.attributes)
    if len(ctx.inputs) == 2:
        attributes |= _OPSET_10
        roi, scales, sizes = None, ctx.content(1), None
    else:
        roi, scales = ctx.content(1), ctx.content(2)
        sizes = ctx.dims(3) if ctx.has(3) and ctx.shape(3) != (0,) else None
    return attributes, _stretches(attributes, ctx.shape(), roi, None if _absent(scales) else scales, sizes)


def _free_body(b: GraphBuilder) -> Results:
    """Whole factors along axes of free sizes; None where every size that changes is known."""
    ctx = b.ctx
    scales = ctx.content(1 if len(ctx.inputs) == 2 else 2)
    if _absent(scales) or scales is None or scales.dtype == object:
        return None
    axes = [int(a) % ctx.rank() for a in ctx.attributes.get("axes", range(ctx.rank()))]
    free = {
        axis: float(scale)
        for axis, scale in zip(axes, scales.ravel().tolist(), strict=False)
        if scale != 1 and not isinstance(ctx.shape()[axis], int)
    }
    if not free:
        return None
    attributes = dict(ctx.attributes) | (_OPSET_10 if len(ctx.inputs) == 2 else {})
    x = b.x[0]
    for axis, factor in free.items():
        x = resize_by_whole_factor(b, x, axis=axis, factor=factor, rank=ctx.rank(), attributes=attributes)
    rest = [1.0 if axis in free else float(s) for axis, s in zip(axes, scales.ravel().tolist(), strict=False)]
    if any(scale != 1 for scale in rest):
        again = b.constant(rest, FLOAT)
        x = (
            b.add("Resize", x, again, **ctx.attributes)
            if len(b.x) == 2
            else b.add("Resize", x, "", again, **ctx.attributes)
        )
    return (x,)


def _body(b: GraphBuilder) -> Results:
    if (free := _free_body(b)) is not None:
        return free
    element, x = b.ctx.element(), b.x[0]
    attributes, stretches = _asked(b)
    nearest = attributes.get("mode", "nearest") == "nearest"
    real = element in FLOATS or element in HALVES
    if not real and not nearest:
        return _as_floats(b, attributes, stretches)
    for stretch in stretches:
        table = stretch.table(attributes)
        if real:
            x = add_resample(b, x, stretch.axis, table)
        else:
            x = b.add("Gather", x, b.integers(table.indices[:, 0].tolist()), axis=stretch.axis)
    return _extrapolated(b, attributes, stretches, x)


def _as_floats(b: GraphBuilder, attributes: Mapping[str, Any], stretches: Sequence[Stretch]) -> Value:
    """Integers are interpolated as floats, rounded, and kept within their range."""
    element = b.ctx.element()
    x = b.x[0].cast(FLOAT)
    for stretch in stretches:
        table = stretch.table(attributes)
        weights = b.constant(table.weights, FLOAT)
        indices = b.constant(table.indices, ElementType.INT32)
        x = b.add("Resample", x, indices, weights, domain="minbuild", axis=stretch.axis)
    if element is BOOL:
        return x.round().cast(element)
    limits = np.iinfo(element.dtype)
    # The largest float that an integer type of 32 or 64 bits holds lies below its own largest.
    top = np.float32(limits.max) if limits.bits < 32 else np.nextafter(np.float32(limits.max), np.float32(0))
    kept = b.add("Clip", x.round(), b.constant(limits.min, FLOAT), b.constant(top, FLOAT))
    return _extrapolated(b, attributes, stretches, kept.cast(element))


def _extrapolated(
    b: GraphBuilder, attributes: Mapping[str, Any], stretches: Sequence[Stretch], y: Value
) -> Value:
    """The extrapolation value where an output stands outside of the input."""
    rank = b.ctx.rank()
    outside = np.zeros((1,) * rank, bool)
    for stretch in stretches:
        shape = tuple(-1 if axis == stretch.axis else 1 for axis in range(rank))
        outside = outside | stretch.outside(attributes).reshape(shape)
    if not outside.any():
        return b.add("Identity", y) if y == b.x[0] else y
    value = b.constant(attributes.get("extrapolation_value", 0.0))
    return b.where(b.constant(outside, BOOL), value, y)


def resized(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    roi: np.ndarray | None = None,
    scales: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
) -> np.ndarray:
    """`x` as ONNX's Resize computes it in float64: by `scales` or to `sizes`, one per axis or per axis of the
    `attributes`; `roi` is the region of tf_crop_and_resize."""
    if scales is None and sizes is None:
        attributes, roi, scales = {**attributes, **_OPSET_10}, None, roi
    given = None if sizes is None or _absent(sizes) else [int(d) for d in sizes]
    stretches = _stretches(attributes, x.shape, roi, None if _absent(scales) else scales, given)
    outside = np.zeros((1,) * x.ndim, bool)
    y = np.asarray(x, np.float64)
    for stretch in stretches:
        y = np.moveaxis(
            np.tensordot(y, stretch.table(attributes).matrix, (stretch.axis, 1)), -1, stretch.axis
        )
        shape = tuple(-1 if axis == stretch.axis else 1 for axis in range(x.ndim))
        outside = outside | stretch.outside(attributes).reshape(shape)
    y = np.where(outside, attributes.get("extrapolation_value", 0.0), y)
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        return np.clip(np.round(y), limits.min, limits.max).astype(x.dtype)
    return np.asarray(y if x.dtype.kind == "f" else np.round(y).astype(x.dtype))


def _gradient(b: GradientBuilder) -> Results:
    """Scales that were asked for are passed on; sizes speak for themselves unless the aspect ratio was kept."""
    attributes, stretches = _asked(b)
    axes = attributes.pop("axes", None)
    policy = attributes.pop("keep_aspect_ratio_policy", "stretch")
    roi = b.x[1] if b.has(1) and len(b.x) > 2 else None
    if axes is not None and roi and not _absent(b.ctx.content(1)):
        ends = {s.axis: s.region for s in stretches}
        whole = [ends.get(axis, (0.0, 1.0)) for axis in range(b.ctx.rank())]
        roi = b.constant([start for start, _ in whole] + [end for _, end in whole], b.ctx.element(1))
    asked = len(b.x) == 2 or (b.has(2) and not _absent(b.ctx.content(2)))
    scales = None
    if asked or policy != "stretch":
        by_axis = {s.axis: s.scale for s in stretches}
        scales = b.constant([by_axis.get(axis, 1.0) for axis in range(b.ctx.rank())], _scale_element(b))
    return b.microsoft("ResizeGrad", b.dy[0], b.x[0], roi, scales, **attributes)


def _scale_element(b: GraphBuilder) -> ElementType:
    """The type that scales came in: ONNX's is float."""
    i = 1 if len(b.x) == 2 else 2
    return b.ctx.element(i) if b.has(i) else FLOAT


def _grad_body(b: GraphBuilder) -> Results:
    """ResizeGrad(dY, X, roi, scales): the tables of Resize transposed, in the opposite order."""
    dy, shape = b.ctx.shape(0), b.ctx.shape(1)
    roi, scales = b.ctx.content(2), b.ctx.content(3)
    known = None if _absent(scales) else scales
    attributes = b.ctx.attributes
    gradient = b.x[0]
    sizes = dy if known is None else None
    for stretch in reversed(_stretches(attributes, shape, roi=roi, scales=known, sizes=sizes, made=dy)):
        gradient = add_resample(b, gradient, stretch.axis, stretch.table(attributes).transposed())
    return b.add("Identity", gradient) if gradient == b.x[0] else gradient


def _grad_reference(
    attributes: Mapping[str, Any],
    dy: np.ndarray,
    x: np.ndarray,
    roi: np.ndarray | None = None,
    scales: np.ndarray | None = None,
) -> np.ndarray:
    known = None if _absent(scales) else scales
    gradient = dy
    sizes = dy.shape if known is None else None
    for s in _stretches(attributes, x.shape, roi=roi, scales=known, sizes=sizes, made=dy.shape):
        gradient = np.moveaxis(np.tensordot(gradient, s.table(attributes).matrix, (s.axis, 0)), -1, s.axis)
    return gradient


resize = Op(
    "Resize",
    since=(10, 11, 13, 18, 19),
    decompose=_body,
    decompose_for_grad=_free_body,
    decomposes_to=("Gather", "Where", "minbuild:Resample", *DECOMPOSES_TO),
    reference=resized,
    gradient=_gradient,
    cases=resize_cases,
)
resize_grad = Op(
    "ResizeGrad",
    domain=MICROSOFT,
    decompose=_grad_body,
    decomposes_to=("minbuild:Resample",),
    reference=_grad_reference,
    cases=lambda random: resize_grad_cases(random, resized),
)

OPS = (resize, resize_grad)
