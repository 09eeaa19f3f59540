"""RoiAlign: regions of images resampled to one size, and the gradient of the images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import (
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    same_as,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results

_PARAMS = ("sampling_ratio:int", "half_pixel:int", "largest:int", "scale:float")
_FEATURES = {"max": "the largest instead of the mean"}
_INPUTS = ("x:T", "rois:T", "images:int64")
align_kernel = KernelFunction("roi_align", ("y:T=", *_INPUTS), _PARAMS, {"T": FLOATS}, _FEATURES)
grad_kernel = KernelFunction("roi_align_grad", ("dx:T=", "dy:T", *_INPUTS), _PARAMS, {"T": FLOATS}, _FEATURES)
_HALF_PIXEL = "coordinate_transformation_mode"  # an attribute since opset 16; before there was no half pixel


def _call(ctx: OpContext, kernel: KernelFunction, names: Sequence[str], version: int) -> Sequence[KernelCall]:
    default = "half_pixel" if version >= 16 else "output_half_pixel"
    largest = ctx.attribute("mode", "avg") == "max"
    params = (
        int(ctx.attribute("sampling_ratio", 0)),
        int(ctx.attribute(_HALF_PIXEL, default) == "half_pixel"),
        int(largest),
        float(ctx.attribute("spatial_scale", 1.0)),
    )
    return (kernel.call(*names, types=(ctx.element(),), params=params, features=("max",) * largest),)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    x, rois = ctx.shape(0), ctx.shape(1)
    if len(x) != 4 or len(rois) != 2 or rois[1] != 4:
        raise UnsupportedUse(
            f"takes regions {list(rois)} from {list(x)}; needs [regions, 4] from [N, C, H, W]"
        )
    bins = int(ctx.attribute("output_height", 1)), int(ctx.attribute("output_width", 1))
    return (TensorType(ctx.element(), (rois[0], x[1], *bins)),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return _call(ctx, align_kernel, (ctx.result(), *ctx.names[:3]), ctx.version)


def _axis_samples(
    attributes: Mapping[str, Any], start: float, end: float, bins: int, size: int
) -> list[list[tuple[int, int, float] | None]]:
    """For every bin of an axis its samples: the lower and the upper neighbour and the weight of the upper one; None
    outside of the image."""
    half_pixel = attributes.get(_HALF_PIXEL, "half_pixel") == "half_pixel"
    offset, scale = 0.5 * half_pixel, attributes.get("spatial_scale", 1.0)
    start, length = start * scale - offset, (end - start) * scale
    width = (length if half_pixel else max(length, 1.0)) / bins
    grid = attributes.get("sampling_ratio", 0) or max(0, int(np.ceil(width)))
    found: list[list[tuple[int, int, float] | None]] = []
    for number in range(bins):
        positions = start + number * width + (np.arange(grid) + 0.5) * width / max(grid, 1)
        found.append([None if at < -1 or at > size else _between(float(at), size) for at in positions])
    return found


def _between(at: float, size: int) -> tuple[int, int, float]:
    at = min(max(at, 0.0), size - 1.0)
    low = int(at)
    return low, min(low + 1, size - 1), at - low


def _taps(
    attributes: Mapping[str, Any], shape: Sequence[int], rois: np.ndarray
) -> Iterator[tuple[tuple[int, int, int], np.ndarray, np.ndarray]]:
    """For every region and bin its place, what it sees as flat indices, and with which weights: [samples * 4]."""
    bins = attributes.get("output_height", 1), attributes.get("output_width", 1)
    for r, (x1, y1, x2, y2) in enumerate(rois.tolist()):
        rows = _axis_samples(attributes, y1, y2, bins[0], shape[2])
        columns = _axis_samples(attributes, x1, x2, bins[1], shape[3])
        for i in range(bins[0]):
            for j in range(bins[1]):
                at, weights = [], []
                for v in rows[i]:
                    for h in columns[j]:
                        if v is None or h is None:
                            at += [0] * 4
                            weights += [0.0] * 4
                            continue
                        at += [y * shape[3] + x for y in v[:2] for x in h[:2]]
                        weights += [a * b for a in (1 - v[2], v[2]) for b in (1 - h[2], h[2])]
                yield (r, i, j), np.array(at, np.int64), np.array(weights)


def _reference(
    attributes: Mapping[str, Any], x: np.ndarray, rois: np.ndarray, images: np.ndarray
) -> np.ndarray:
    bins = attributes.get("output_height", 1), attributes.get("output_width", 1)
    y = np.zeros((len(rois), x.shape[1], *bins))
    flat = x.reshape(*x.shape[:2], -1)
    for (r, i, j), at, weights in _taps(attributes, x.shape, rois):
        seen = flat[images[r]][:, at] * weights
        if attributes.get("mode", "avg") == "max":
            y[r, :, i, j] = seen.max(1) if len(at) else 0
        else:
            y[r, :, i, j] = seen.sum(1) / max(len(at) // 4, 1)
    return y


def _gradient(b: GradientBuilder) -> Results:
    """Of the images; regions are taken as given, as detectors do."""
    return b.add("RoiAlignGrad", b.dy[0], *b.x, domain="minbuild", **_explicit(b.ctx))


def _explicit(ctx: OpContext) -> dict[str, Any]:
    default = "half_pixel" if ctx.version >= 16 else "output_half_pixel"
    return {_HALF_PIXEL: default, **ctx.attributes}


_VARIANTS: tuple[Mapping[str, Any], ...] = (
    {"output_height": 2, "output_width": 3},
    {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.5},
    {"output_height": 2, "output_width": 2, _HALF_PIXEL: "output_half_pixel"},
    {"output_height": 2, "output_width": 2, "mode": "max", "sampling_ratio": 2},
    {"output_height": 1, "output_width": 2, "mode": "max", _HALF_PIXEL: "output_half_pixel"},
)


def _inputs(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    corners = random.uniform(-2, 6, (4, 2))
    rois = np.concatenate([corners, corners + random.uniform(0.3, 6, (4, 2))], 1)
    return random.standard_normal((2, 3, 6, 7)), rois, np.array([0, 1, 1, 0], np.int64)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for attributes in _VARIANTS:
        inputs = _inputs(random)
        yield TestCase(f"{dict(attributes)}", inputs, attributes, frozenset({1, 2}), ulps=64)
        yield TestCase(f"{dict(attributes)} fed", inputs, attributes, ulps=64, smooth=False)


roi_align = Op(
    "RoiAlign",
    since=(10, 16, 22),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(align_kernel,),
    cases=_cases,
    gradient=_gradient,
)


# ------------------------------------------------------------------------------------------------- gradient


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    return _call(ctx, grad_kernel, (ctx.result(), *ctx.names[:4]), max(roi_align.since))


def _grad_reference(
    attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray, rois: np.ndarray, images: np.ndarray
) -> np.ndarray:
    flat = x.reshape(*x.shape[:2], -1)
    dx = np.zeros_like(flat)
    for (r, i, j), at, weights in _taps(attributes, x.shape, rois):
        for c in range(x.shape[1]):
            flow, into = dy[r, c, i, j], dx[images[r], c]
            if attributes.get("mode", "avg") == "max":
                best = int(np.argmax(flat[images[r], c, at] * weights))
                into[at[best]] += weights[best] * flow
            else:
                np.add.at(into, at, weights * flow / max(len(at) // 4, 1))
    return dx.reshape(x.shape)


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for attributes in _VARIANTS:
        inputs = _inputs(random)
        dy = random.standard_normal(_reference(attributes, *inputs).shape)
        smooth = attributes.get("mode", "avg") == "avg"
        yield TestCase(
            f"{dict(attributes)}", (dy, *inputs), attributes, frozenset({2, 3}), ulps=64, smooth=smooth
        )


def _grad_gradient(b: GradientBuilder) -> Results:
    """A mean is linear: what comes back goes the way of the images."""
    if b.ctx.attribute("mode", "avg") != "avg":
        raise UnsupportedUse(
            "the gradient of a gradient through the largest samples is not supported; use mode 'avg'"
        )
    if 0 not in b.requires_grad:
        return None
    return b.add("RoiAlign", b.dy[0], *b.x[2:], **b.ctx.attributes)


roi_align_grad = Op(
    "RoiAlignGrad",
    domain="minbuild",
    infer=same_as(1),
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(grad_kernel,),
    cases=_grad_cases,
    gradient=_grad_gradient,
)

KERNELS = (align_kernel, grad_kernel)
OPS = (roi_align, roi_align_grad)
