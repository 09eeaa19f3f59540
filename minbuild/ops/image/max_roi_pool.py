"""MaxRoiPool: the largest values in the parts of regions of images, and the gradient of the images."""

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

_PARAMS, _TYPES = ("scale:float",), {"T": FLOATS}
pool_kernel = KernelFunction("max_roi_pool", ("y:T=", "x:T", "rois:T"), _PARAMS, _TYPES)
grad_kernel = KernelFunction("max_roi_pool_grad", ("dx:T=", "dy:T", "x:T", "rois:T"), _PARAMS, _TYPES)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    x, rois = ctx.shape(0), ctx.shape(1)
    bins = tuple(int(n) for n in ctx.attribute("pooled_shape", ()))
    if len(x) != 4 or len(rois) != 2 or rois[1] != 5 or len(bins) != 2:
        text = f"takes regions {list(rois)} from {list(x)} to {list(bins)}"
        raise UnsupportedUse(f"{text}; needs [regions, 5] from [N, C, H, W] to [height, width]")
    return (TensorType(ctx.element(), (rois[0], x[1], *bins)),)


def _call(ctx: OpContext, kernel: KernelFunction, *names: str) -> Sequence[KernelCall]:
    scale = float(ctx.attribute("spatial_scale", 1.0))
    return (kernel.call(ctx.result(), *names, types=(ctx.element(),), params=(scale,)),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return _call(ctx, pool_kernel, *ctx.names[:2])


def _bins(start: float, end: float, count: int, size: int) -> list[range]:
    """The pixels of every bin along an axis: the region in whole pixels, halves rounded away from zero, its ends
    included, cut so that bins overlap rather than leave some out."""
    low, high = (int(np.trunc(at + np.copysign(0.5, at))) for at in (start, end))
    length = max(high - low + 1, 1)
    edges = [(low + i * length // count, low - (-(i + 1) * length // count)) for i in range(count)]
    return [range(min(max(a, 0), size), min(max(b, 0), size)) for a, b in edges]


def _largest(
    attributes: Mapping[str, Any], x: np.ndarray, rois: np.ndarray
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For every element of the result that has any pixels its place, and where the first of the largest stands."""
    scale = float(np.float32(attributes.get("spatial_scale", 1.0)))
    counts = attributes["pooled_shape"]
    for r, (image, x1, y1, x2, y2) in enumerate(rois.tolist()):
        rows = _bins(y1 * scale, y2 * scale, counts[0], x.shape[2])
        columns = _bins(x1 * scale, x2 * scale, counts[1], x.shape[3])
        for c, i, j in np.ndindex(x.shape[1], *counts):
            plane = x[int(image), c]
            seen = [(v, h) for v in rows[i] for h in columns[j]]
            if seen:
                v, h = max(seen, key=lambda at: plane[at])
                yield (r, c, i, j), (int(image), c, v, h)


def _reference(attributes: Mapping[str, Any], x: np.ndarray, rois: np.ndarray) -> np.ndarray:
    y = np.zeros((len(rois), x.shape[1], *attributes["pooled_shape"]))
    for to, at in _largest(attributes, x, rois):
        y[to] = x[at]
    return y


def _gradient(b: GradientBuilder) -> Results:
    """Of the images; regions, which are rounded to pixels, have none."""
    return b.add("MaxRoiPoolGrad", b.dy[0], *b.x, domain="minbuild", **b.ctx.attributes)


_VARIANTS: tuple[Mapping[str, Any], ...] = (
    {"pooled_shape": [2, 3]},
    {"pooled_shape": [3, 2], "spatial_scale": 0.5},
    {"pooled_shape": [4, 5], "spatial_scale": 0.75},
)


def _inputs(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Regions inside of images, across their borders, beside them, and one whose ends are the wrong way round."""
    corners = [
        (0, 0, 6, 5),
        (2.5, 1.5, 4.5, 3.5),
        (-2, -1, 3, 2),
        (5, 4, 12, 9),
        (20, 20, 30, 30),
        (4, 4, 1, 1),
    ]
    images = [0, 1, 1, 0, 1, 0]
    return random.standard_normal((2, 3, 6, 7)), np.column_stack([images, np.array(corners, float)])


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for attributes in _VARIANTS:
        inputs = _inputs(random)
        yield TestCase(f"{dict(attributes)}", inputs, attributes, frozenset({1}), ulps=0)
        yield TestCase(f"{dict(attributes)} fed", inputs, attributes, ulps=0, smooth=False)


max_roi_pool = Op(
    "MaxRoiPool",
    since=(1, 22),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(pool_kernel,),
    cases=_cases,
    gradient=_gradient,
)


# ------------------------------------------------------------------------------------------------- gradient


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    return _call(ctx, grad_kernel, *ctx.names[:3])


def _grad_reference(
    attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray, rois: np.ndarray
) -> np.ndarray:
    dx = np.zeros_like(x)
    for to, at in _largest(attributes, x, rois):
        dx[at] += dy[to]
    return dx


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for attributes in _VARIANTS:
        inputs = _inputs(random)
        dy = random.standard_normal(_reference(attributes, *inputs).shape)
        yield TestCase(f"{dict(attributes)}", (dy, *inputs), attributes, frozenset({2}))


max_roi_pool_grad = Op(
    "MaxRoiPoolGrad",
    domain="minbuild",
    infer=same_as(1),
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(grad_kernel,),
    cases=_grad_cases,
)

KERNELS = (pool_kernel, grad_kernel)
OPS = (max_roi_pool, max_roi_pool_grad)
