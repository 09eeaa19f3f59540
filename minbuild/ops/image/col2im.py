"""Col2Im and MaxUnpool: images put together from windows, of Gather, Pad and their like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minbuild.ir.dims import Dim
from minbuild.ops.core.definition import INT64, Op, OpContext, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

# ------------------------------------------------------------------------------------------------- Col2Im


@dataclass(frozen=True)
class _Windows:
    """Windows over an image: for each spatial axis its padded size and `places[k, o]`, the place that element k of
    window o has along it."""

    channels: int
    sizes: tuple[int, ...]
    places: tuple[np.ndarray, ...]
    pads: tuple[int, ...]  # before, then behind

    @property
    def split(self) -> tuple[int, ...]:
        """The windows as [elements..., windows...], behind batch and channels."""
        return tuple(p.shape[i] for i in (0, 1) for p in self.places)

    @property
    def together(self) -> tuple[int, ...]:
        """The order of axes that puts each axis's elements and windows side by side."""
        n = len(self.places)
        return 0, 1, *(2 + axis + n * half for axis in range(n) for half in (0, 1))


def _whole(values: Sequence[Dim], what: str) -> tuple[int, ...]:
    if not all(isinstance(v, int) for v in values):
        raise UnsupportedUse(f"{what} {list(values)} must be known when the trainer is built")
    return tuple(int(v) for v in values)  # type: ignore[arg-type]


def _windows(
    attributes: Mapping[str, Any], image: Sequence[Dim], block: Sequence[Dim], columns: Dim
) -> _Windows:
    image, block, (rows,) = _whole(image, "the image"), _whole(block, "the block"), _whole((columns,), "rows")
    n = len(image)
    dilations = tuple(attributes.get("dilations") or (1,) * n)
    strides = tuple(attributes.get("strides") or (1,) * n)
    pads = tuple(attributes.get("pads") or (0,) * 2 * n)
    if len(block) != n or rows % int(np.prod(block)) != 0:
        raise UnsupportedUse(f"{rows} rows are no blocks of {list(block)}")
    sizes, places = [], []
    for axis in range(n):
        sizes.append(image[axis] + pads[axis] + pads[n + axis])
        elements = np.arange(block[axis]) * dilations[axis]
        count = (sizes[axis] - elements[-1] - 1) // strides[axis] + 1
        places.append(elements[:, None] + np.arange(count) * strides[axis])
    return _Windows(rows // int(np.prod(block)), tuple(sizes), tuple(places), pads)


def _windows_at(ctx: OpContext) -> _Windows:
    return _windows(ctx.attributes, ctx.dims(1), ctx.dims(2), ctx.shape()[1])


def _batch(b: GraphBuilder) -> Value:
    """The first dimension of the input, as a value."""
    return b.add("Slice", b.x[0].shape(), b.integers([0]), b.integers([1]))


def _cropped(windows: _Windows, sign: int) -> list[int]:
    """Pads of the whole image: added where `sign` is 1, taken away where it is -1."""
    n = len(windows.sizes)
    return [0, 0, *(sign * p for p in windows.pads[:n]), 0, 0, *(sign * p for p in windows.pads[n:])]


def _col2im_body(b: GraphBuilder) -> Results:
    """Every element is added where it belongs, one axis after the other."""
    windows = _windows_at(b.ctx)
    n = len(windows.sizes)
    y = b.x[0].reshape([0, windows.channels, *windows.split])
    y = y.transpose(windows.together)
    for axis in reversed(range(n)):
        before = [d for p in windows.places[:axis] for d in p.shape]
        shape = [windows.channels, *before, *windows.sizes[axis:]]
        target = b.add("Concat", _batch(b), b.integers(shape), axis=0)
        places = b.constant(windows.places[axis], INT64)
        y = b.microsoft("GatherGrad", target, places, y, axis=2 + 2 * axis)
    return b.add("Pad", y, b.integers(_cropped(windows, -1)))


def _col2im_gradient(b: GradientBuilder) -> Results:
    """The windows of the image: im2col."""
    windows = _windows_at(b.ctx)
    dx = b.add("Pad", b.dy[0], b.integers(_cropped(windows, 1)))
    for axis in range(len(windows.sizes)):
        dx = b.add("Gather", dx, b.constant(windows.places[axis], INT64), axis=2 + 2 * axis)
    back = tuple(int(i) for i in np.argsort(windows.together))
    return dx.transpose(back).reshape_like(b.x[0])


def _col2im_reference(
    attributes: Mapping[str, Any], x: np.ndarray, image: np.ndarray, block: np.ndarray
) -> np.ndarray:
    windows = _windows(attributes, image.tolist(), block.tolist(), x.shape[1])
    y = np.zeros((x.shape[0], windows.channels, *windows.sizes))
    n = len(windows.sizes)
    elements = x.reshape(x.shape[0], windows.channels, *windows.split)
    for at in np.ndindex(*windows.split):
        place: list[Any] = [int(windows.places[i][at[i], at[n + i]]) for i in range(n)]
        there: tuple[Any, ...] = (..., *at)
        y[(..., *place)] += elements[there]
    kept: list[Any] = [slice(windows.pads[i], s - windows.pads[n + i]) for i, s in enumerate(windows.sizes)]
    return y[(..., *kept)]


def _col2im_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for image, block, attributes in (
        ((5, 5), (1, 5), {}),
        ((5, 5), (3, 2), {}),
        ((5, 6), (2, 3), {"strides": (2, 1), "pads": (1, 0, 0, 2)}),
        ((6, 6), (2, 2), {"dilations": (1, 5)}),
        ((7,), (3,), {"strides": (2,)}),
        ((3, 4, 4), (1, 3, 2), {"pads": (0, 1, 0, 0, 1, 1)}),
    ):
        rows = 2 * int(np.prod(block))
        windows = _windows(attributes, image, block, rows)
        x = random.standard_normal((2, rows, int(np.prod(windows.split[len(image) :]))))
        inputs = (x, np.array(image), np.array(block))
        yield TestCase(f"{image} {block} {attributes}", inputs, attributes, frozenset({1, 2}), ulps=8)


# ---------------------------------------------------------------------------------------------- MaxUnpool


def _pooled(attributes: Mapping[str, Any], shape: Sequence[Dim]) -> tuple[int, ...]:
    """The size of the image that was pooled, as far as it is determined: a remainder is lost."""
    kernel = tuple(attributes["kernel_shape"])
    n = len(kernel)
    strides, pads = attributes.get("strides") or (1,) * n, attributes.get("pads") or (0,) * 2 * n
    sizes = _whole(shape[2:], "the image")
    return tuple(
        (sizes[i] - 1) * int(strides[i]) - int(pads[i]) - int(pads[n + i]) + int(kernel[i]) for i in range(n)
    )


def _grown(ctx: OpContext) -> tuple[int, ...]:
    """By how much the result is larger than that."""
    pooled = _pooled(ctx.attributes, ctx.shape())
    if not ctx.has(2):
        return (0,) * len(pooled)
    requested = _whole(ctx.dims(2)[2:], "the output shape")
    return tuple(w - p for w, p in zip(requested, pooled, strict=True))


def _unpool_body(b: GraphBuilder) -> Results:
    """Indices count the elements of the whole pooled tensor."""
    pooled, grown = _pooled(b.ctx.attributes, b.ctx.shape()), _grown(b.ctx)
    front = b.add("Slice", b.x[0].shape(), b.integers([0]), b.integers([2]))
    shape = b.add("Concat", front, b.integers(pooled), axis=0)
    zeros = b.add("ConstantOfShape", shape, value=np.zeros(1, b.ctx.element().dtype))
    flat = [v.reshape([-1]) for v in (zeros, b.x[1], b.x[0])]
    y = b.add("Reshape", b.add("ScatterElements", *flat, axis=0), shape)
    n = len(pooled)
    return b.add("Pad", y, b.integers([0] * (n + 4) + list(grown))) if any(grown) else y


def _unpool_gradient(b: GradientBuilder) -> Results:
    """Elements take what comes from where they went."""
    grown, dy = _grown(b.ctx), b.dy[0]
    if any(grown):
        dy = b.add("Pad", dy, b.integers([0] * (len(grown) + 4) + [-g for g in grown]))
    flat = dy.reshape([-1])
    return b.add("Gather", flat, b.x[1], axis=0)


def _unpool_reference(
    attributes: Mapping[str, Any], x: np.ndarray, indices: np.ndarray, shape: np.ndarray | None = None
) -> np.ndarray:
    pooled = _pooled(attributes, x.shape)
    y = np.zeros((*x.shape[:2], *pooled))
    y.reshape(-1)[indices.ravel()] = x.ravel()
    if shape is None:
        return y
    whole = np.zeros(tuple(int(d) for d in shape))
    whole[tuple(slice(0, d) for d in y.shape)] = y
    return whole


def _unpool_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, attributes in (
        ((1, 1, 2, 2), {"kernel_shape": (2, 2), "strides": (2, 2)}),
        ((2, 3, 2, 4), {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 0, 0, 0)}),
        ((2, 2, 5), {"kernel_shape": (2,), "strides": (2,)}),
    ):
        pooled = (*shape[:2], *_pooled(attributes, shape))
        x = random.standard_normal(shape)
        indices = random.permutation(int(np.prod(pooled)))[: x.size].reshape(shape)
        yield TestCase(f"{list(shape)} {attributes}", (x, indices), attributes, ulps=0)
        larger = np.array([*pooled[:2], *(d + 1 for d in pooled[2:])])
        inputs = (x, indices, larger)
        yield TestCase(f"{list(shape)} {attributes} larger", inputs, attributes, frozenset({2}), ulps=0)


col2im = Op(
    "Col2Im",
    since=(18,),
    reference=_col2im_reference,
    decompose=_col2im_body,
    decomposes_to=("Concat", "Pad", "Slice", "Transpose", "com.microsoft:GatherGrad"),
    cases=_col2im_cases,
    gradient=_col2im_gradient,
)
max_unpool = Op(
    "MaxUnpool",
    since=(9, 11, 22),
    reference=_unpool_reference,
    decompose=_unpool_body,
    decomposes_to=("Concat", "ConstantOfShape", "Pad", "ScatterElements", "Slice"),
    cases=_unpool_cases,
    gradient=_unpool_gradient,
)

OPS = (col2im, max_unpool)
