"""GridSample over one to three spatial axes, and its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product as combinations
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
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results

_MODES = {
    "nearest": 0,
    "linear": 1,
    "bilinear": 1,
    "cubic": 2,
    "bicubic": 2,
}  # opset 16 has names for two axes
_PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}
_PARAMS = ("mode:int", "padding:int", "align_corners:int")
_FEATURES = {"cubic": "cubic interpolation"}
sample_kernel = KernelFunction("grid_sample", ("y:T=", "x:T", "grid:T"), _PARAMS, {"T": FLOATS}, _FEATURES)
grad_kernel = KernelFunction(
    "grid_sample_grad", ("dx:T=?", "dgrid:T=?", "dy:T", "x:T", "grid:T"), _PARAMS, {"T": FLOATS}, _FEATURES
)


def _params(attributes: Mapping[str, Any]) -> tuple[int, int, int]:
    mode, padding = attributes.get("mode", "linear"), attributes.get("padding_mode", "zeros")
    if mode not in _MODES or padding not in _PADDINGS:
        raise UnsupportedUse(f"mode {mode} or padding_mode {padding} is not known")
    return _MODES[mode], _PADDINGS[padding], int(bool(attributes.get("align_corners", 0)))


def _call(ctx: OpContext, kernel: KernelFunction, names: Sequence[str]) -> Sequence[KernelCall]:
    params = _params(ctx.attributes)
    features = ("cubic",) * (params[0] == 2)
    return (kernel.call(*names, types=(ctx.element(),), params=params, features=features),)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    shape, grid = ctx.shape(0), ctx.shape(1)
    if not 3 <= len(shape) <= 5 or len(grid) != len(shape) or grid[-1] != len(shape) - 2:
        raise UnsupportedUse(
            f"samples {list(shape)} at {list(grid)}; only one to three spatial axes are supported"
        )
    return (TensorType(ctx.element(), (*shape[:2], *grid[1:-1])),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return _call(ctx, sample_kernel, (ctx.result(), ctx.name(0), ctx.name(1)))


# ------------------------------------------------------------------------------------------------- reference


def _reflected(v: np.ndarray, low: float, high: float) -> np.ndarray:
    """v mirrored at low and high until it lies between."""
    width = high - low
    if width <= 0:
        return np.full_like(v, low)
    folded = np.abs((v - low) % (2 * width))
    return low + np.minimum(folded, 2 * width - folded)


def _taps(attributes: Mapping[str, Any], number: np.ndarray, size: int) -> list[tuple[np.ndarray, ...]]:
    """Places, weights, and the weights' derivatives by `number`, of every tap along one axis."""
    mode, padding, align = _params(attributes)
    v = (number + 1) / 2 * (size - 1) if align else ((number + 1) * size - 1) / 2
    change = np.full_like(v, (size - 1) / 2 if align else size / 2)
    v = np.rint(v) if mode == 0 else v
    low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
    if padding == 1:
        change = np.where((v < low) | (v > high), 0, change)
        v = np.where((v < low) | (v > high), np.clip(v, 0, size - 1), v)
    elif padding == 2:
        change = np.where((v - low) % (2 * max(high - low, 1)) > high - low, -change, change)
        v = _reflected(v, low, high)
    first = np.floor(v)
    found: list[tuple[np.ndarray, ...]] = []
    for offset in {0: (0,), 1: (0, 1), 2: (-1, 0, 1, 2)}[mode]:
        place, off = first + offset, v - first - offset
        weight, slope = _weights(mode, np.abs(off))
        place = _reflected(place, low, high) if padding == 2 else place
        seen = (place >= 0) & (place <= size - 1) | (padding != 0)
        at = np.clip(place, 0, size - 1).astype(np.int64)
        found.append((at, np.where(seen, weight, 0), np.where(seen, slope * np.sign(off) * change, 0)))
    return found


def _weights(mode: int, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weight of an element at distance `d`, and its derivative; for cubic by Keys' kernel with a = -0.75."""
    if mode == 0:
        return np.ones_like(d), np.zeros_like(d)
    if mode == 1:
        return 1 - d, np.full_like(d, -1)
    near, near_slope = (1.25 * d - 2.25) * d**2 + 1, (3.75 * d - 4.5) * d
    far, far_slope = ((-0.75 * d + 3.75) * d - 6) * d + 3, (-2.25 * d + 7.5) * d - 6
    return np.where(d <= 1, near, far), np.where(d <= 1, near_slope, far_slope)


def _all_taps(
    attributes: Mapping[str, Any], sizes: Sequence[int], grid: np.ndarray
) -> Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Flat places in an image and weights, [N,outputs], and derivatives by the grid, [N,outputs,axes], of all taps."""
    numbers = grid.reshape(len(grid), -1, grid.shape[-1])
    each = [_taps(attributes, numbers[..., -1 - a], size) for a, size in enumerate(sizes)]
    for taps in combinations(*each):
        place = np.zeros(numbers.shape[:2], np.int64)
        for (at, _, _), size in zip(taps, sizes, strict=True):
            place = place * size + at
        weights = [weight for _, weight, _ in taps]
        slopes = [
            np.prod([*weights[:a], slope, *weights[a + 1 :]], 0) for a, (_, _, slope) in enumerate(taps)
        ]
        yield place, np.prod(weights, 0), np.stack(slopes[::-1], -1)


def _reference(attributes: Mapping[str, Any], x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    flat = x.reshape(*x.shape[:2], -1)
    y = np.zeros((*x.shape[:2], int(np.prod(grid.shape[1:-1]))))
    for place, weight, _ in _all_taps(attributes, x.shape[2:], grid):
        y += np.take_along_axis(flat, place[:, None], 2) * weight[:, None]
    return y.reshape(*x.shape[:2], *grid.shape[1:-1])


def _gradient(b: GradientBuilder) -> Results:
    return tuple(b.many(2, "GridSampleGrad", b.dy[0], *b.x, domain="minbuild", **b.ctx.attributes))


# Shape of x, sizes of the result's spatial axes.
_SHAPES = (((2, 3, 4, 5), (3, 4)), ((1, 2, 3, 1), (5, 2)), ((1, 2, 6), (7,)), ((1, 2, 3, 4, 3), (2, 3, 2)))


def _inputs(
    random: np.random.Generator, shape: tuple[int, ...], outputs: tuple[int, ...], align: int
) -> tuple[np.ndarray, np.ndarray]:
    """An image, and a grid whose positions lie inside and around it, away from where weights have kinks."""
    numbers = []
    for size in reversed(shape[2:]):
        fraction = random.choice((-1, 1), (shape[0], *outputs)) * random.uniform(
            0.1, 0.4, (shape[0], *outputs)
        )
        place = random.integers(-3, size + 3, (shape[0], *outputs)) + fraction
        numbers.append(2 * place / max(size - 1, 1) - 1 if align else (2 * place + 1) / size - 1)
    return random.standard_normal(shape), np.stack(numbers, -1)


def _variants(random: np.random.Generator) -> Iterable[tuple[str, dict[str, Any], np.ndarray, np.ndarray]]:
    for shape, outputs in _SHAPES:
        for mode in ("nearest", "linear", "cubic"):
            for padding in _PADDINGS:
                for align in (0, 1):
                    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
                    x, grid = _inputs(random, shape, outputs, align)
                    yield f"{list(shape)} {mode} {padding} {align}", attributes, x, grid


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, attributes, x, grid in _variants(random):
        yield TestCase(name, (x, grid), attributes, ulps=128)


grid_sample = Op(
    "GridSample",
    since=(16, 20, 22),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(sample_kernel,),
    cases=_cases,
    gradient=_gradient,
)


# ------------------------------------------------------------------------------------------------- gradients


def _grad_infer(ctx: OpContext) -> Sequence[TensorType]:
    return TensorType(ctx.element(), ctx.shape(1)), TensorType(ctx.element(), ctx.shape(2))


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    results = [ctx.result(i) if i < len(ctx.result_names) else "" for i in (0, 1)]
    return _call(ctx, grad_kernel, (*results, *ctx.names[:3]))


def _grad_reference(
    attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray, grid: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    flat, flow = x.reshape(*x.shape[:2], -1), dy.reshape(*dy.shape[:2], -1)
    dx, dgrid = np.zeros_like(flat), np.zeros((len(x), flow.shape[2], grid.shape[-1]))
    for place, weight, slopes in _all_taps(attributes, x.shape[2:], grid):
        for n, at in enumerate(place):
            for c in range(x.shape[1]):
                np.add.at(dx[n, c], at, flow[n, c] * weight[n])
        seen = (np.take_along_axis(flat, place[:, None], 2) * flow).sum(1)
        dgrid += seen[..., None] * slopes
    return dx.reshape(x.shape), dgrid.reshape(grid.shape)


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for index, (name, attributes, x, grid) in enumerate(_variants(random)):
        dy = random.standard_normal((*x.shape[:2], *grid.shape[1:-1]))
        absent = frozenset(((), (0,), (1,))[index % 3])
        yield TestCase(name, (dy, x, grid), attributes, outputs=2, absent=absent, ulps=256)


grid_sample_grad = Op(
    "GridSampleGrad",
    domain="minbuild",
    infer=_grad_infer,
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(grad_kernel,),
    cases=_grad_cases,
)

KERNELS = (sample_kernel, grad_kernel)
OPS = (grid_sample, grid_sample_grad)
