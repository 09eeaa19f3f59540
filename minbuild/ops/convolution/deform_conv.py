"""DeformConv: a convolution whose windows look where offsets say. Samples by GridSample, then a matrix product."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minbuild.ir import Shape
from minbuild.ir.dims import Dim
from minbuild.ops.convolution.sliding_window import Axis, axes, reshaped
from minbuild.ops.core.definition import Op, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.image import grid_sample as _grid_sample


@dataclass(frozen=True)
class _Layer:
    """The sizes of one application: images x filters, `spread` channels share their offsets."""

    batch: Dim
    channels: int
    groups: int
    offset_groups: int
    filters: int
    window: tuple[Axis, ...]
    taps: int

    @classmethod
    def of(cls, attributes: Mapping[str, Any], x: Shape, w: Shape) -> _Layer:
        sizes = (*x[1:], *w)
        if len(x) != 4 or len(w) != 4 or not all(isinstance(d, int) for d in sizes):
            raise UnsupportedUse(
                f"convolves {list(x)} with {list(w)}; two spatial axes of known sizes are supported"
            )
        window = axes(attributes, x[2:], tuple(int(d) for d in w[2:]))  # type: ignore[arg-type]
        groups, offsets = int(attributes.get("group", 1)), int(attributes.get("offset_group", 1))
        return cls(
            x[0],
            channels=x[1],  # type: ignore[arg-type]
            groups=groups,
            offset_groups=offsets,
            filters=w[0],  # type: ignore[arg-type]
            window=window,
            taps=int(np.prod(w[2:])),  # type: ignore[arg-type]
        )

    @property
    def outputs(self) -> tuple[int, int]:
        height, width = (int(a.outputs) for a in self.window)  # type: ignore[arg-type]
        return height, width

    def base(self) -> np.ndarray:
        """Where each tap looks without offsets, in GridSample's units: [taps, outputs, (x, y)]."""
        each = []
        for axis in self.window:
            tap, output = np.arange(axis.taps)[:, None], np.arange(int(axis.outputs))[None]  # type: ignore[arg-type]
            each.append(self.units(output * axis.stride + tap * axis.dilation - axis.before, axis))
        y, x = each
        shape = (*y.shape[:1], x.shape[0], y.shape[1], x.shape[1])
        grids = (np.broadcast_to(x[None, :, None], shape), np.broadcast_to(y[:, None, :, None], shape))
        return np.stack([g.reshape(self.taps, -1) for g in grids], -1)

    @staticmethod
    def units(pixels: np.ndarray, axis: Axis) -> np.ndarray:
        return (2 * pixels + 1) / int(axis.size) - 1  # type: ignore[arg-type]

    def scale(self) -> np.ndarray:
        """GridSample's units per pixel, (x, y)."""
        return np.array([2 / int(a.size) for a in reversed(self.window)])  # type: ignore[arg-type]


def _grid(b: GraphBuilder, layer: _Layer) -> Value:
    """Positions of all taps, [N*OG, taps, outputs, (x, y)], from offsets [N, OG*taps*(y, x), outputs]."""
    rows, places = layer.batch * layer.offset_groups, int(np.prod(layer.outputs))
    offsets = reshaped(b, b.x[2], (rows, layer.taps, 2, places))
    swapped = b.add("Gather", offsets, b.integers((1, 0)), axis=2)
    last = swapped.transpose((0, 1, 3, 2))
    return last * layer.scale() + layer.base()


def _columns(b: GraphBuilder, layer: _Layer, grid: Value) -> Value:
    """The columns of the windows, [N*OG, C/OG, taps, outputs], without the mask."""
    height, width = (a.size for a in layer.window)
    rows, shared = layer.batch * layer.offset_groups, layer.channels // layer.offset_groups
    image = reshaped(b, b.x[0], (rows, shared, height, width))
    return b.add("GridSample", image, grid, mode="linear", padding_mode="zeros", align_corners=0)


def _mask(b: GraphBuilder, layer: _Layer) -> Value:
    rows, places = layer.batch * layer.offset_groups, int(np.prod(layer.outputs))
    return reshaped(b, b.x[4], (rows, 1, layer.taps, places))


def _matrices(b: GraphBuilder, layer: _Layer, columns: Value) -> tuple[Value, Value]:
    """Weights as [G, M/G, K] and columns as [N, G, K, outputs]."""
    depth = layer.channels // layer.groups * layer.taps
    weights = reshaped(b, b.x[1], (layer.groups, layer.filters // layer.groups, depth))
    shape = (layer.batch, layer.groups, depth, int(np.prod(layer.outputs)))
    return weights, reshaped(b, columns, shape)


def _body(b: GraphBuilder) -> Results:
    layer = _Layer.of(b.ctx.attributes, b.ctx.shape(0), b.ctx.shape(1))
    columns = _columns(b, layer, _grid(b, layer))
    if b.has(4):
        columns = columns * _mask(b, layer)
    weights, columns = _matrices(b, layer, columns)
    y = reshaped(b, weights @ columns, (layer.batch, layer.filters, *layer.outputs))
    if not b.has(3):
        return y
    return y + reshaped(b, b.x[3], (-1, 1, 1))


def _gradient(b: GradientBuilder) -> Results:
    """Through the product, the mask, and GridSample; what the windows saw is sampled again rather than kept."""
    layer = _Layer.of(b.ctx.attributes, b.ctx.shape(0), b.ctx.shape(1))
    grid = _grid(b, layer)
    columns = _columns(b, layer, grid)
    masked = columns * _mask(b, layer) if b.has(4) else columns
    weights, matrix = _matrices(b, layer, masked)
    shape = (layer.batch, layer.groups, layer.filters // layer.groups, int(np.prod(layer.outputs)))
    dy = reshaped(b, b.dy[0], shape)
    dw = (dy @ matrix.transpose((0, 1, 3, 2))).sum((0,), False)
    flow = weights.transpose((0, 2, 1)) @ dy
    flow = flow.reshape_like(columns)
    dmask = None
    if b.has(4):
        dmask = (flow * columns).sum((1,))
        dmask = dmask.reshape_like(b.x[4])
        flow = flow * _mask(b, layer)
    dx, doffset = _through_samples(b, layer, flow, grid)
    dw = dw.reshape_like(b.x[1])
    db = b.dy[0].sum((0, 2, 3), False) if b.has(3) else None
    return (dx, dw, doffset, db, dmask)[: len(b.x)]


def _through_samples(b: GradientBuilder, layer: _Layer, flow: Value, grid: Value) -> tuple[Value, Value]:
    """The gradients of the image and of the offsets."""
    height, width = (a.size for a in layer.window)
    rows, shared = layer.batch * layer.offset_groups, layer.channels // layer.offset_groups
    image = reshaped(b, b.x[0], (rows, shared, height, width))
    kind = {"mode": "linear", "padding_mode": "zeros", "align_corners": 0}
    dimage, dgrid = b.many(2, "GridSampleGrad", flow, image, grid, domain="minbuild", **kind)
    moved = (dgrid * layer.scale()).transpose((0, 1, 3, 2))
    swapped = b.add("Gather", moved, b.integers((1, 0)), axis=2)
    return dimage.reshape_like(b.x[0]), swapped.reshape_like(b.x[2])


def _reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    w: np.ndarray,
    offset: np.ndarray,
    bias: np.ndarray | None = None,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    layer = _Layer.of(attributes, x.shape, w.shape)
    rows, places = len(x) * layer.offset_groups, int(np.prod(layer.outputs))
    moved = offset.reshape(rows, layer.taps, 2, places)[:, :, ::-1].transpose(0, 1, 3, 2)
    grid = layer.base() + moved * layer.scale()
    images = x.reshape(rows, -1, *x.shape[2:])
    assert _grid_sample.grid_sample.reference is not None
    columns = _grid_sample.grid_sample.reference({"mode": "linear"}, images, grid)
    if mask is not None:
        columns = columns * mask.reshape(rows, 1, layer.taps, places)
    columns = columns.reshape(len(x), layer.groups, -1, places)
    y = w.reshape(layer.groups, layer.filters // layer.groups, -1) @ columns
    y = y.reshape(len(x), layer.filters, *layer.outputs)
    return y if bias is None else y + bias.reshape(-1, 1, 1)


# Shape of x, of w, attributes.
_VARIANTS: tuple[tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]], ...] = (
    ((1, 1, 3, 3), (1, 1, 2, 2), {}),
    ((2, 2, 5, 4), (3, 2, 3, 2), {"pads": (1, 0, 1, 1)}),
    ((1, 4, 6, 6), (4, 2, 3, 3), {"group": 2, "offset_group": 2, "strides": (2, 1), "pads": (1, 1, 1, 1)}),
    ((2, 4, 6, 5), (2, 4, 2, 2), {"offset_group": 4, "dilations": (2, 1)}),
)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for x, w, attributes in _VARIANTS:
        layer = _Layer.of(attributes, x, w)
        shape = (x[0], layer.offset_groups * layer.taps, *layer.outputs)
        # Offsets whose fractions stay away from the kinks at whole pixels.
        whole = random.integers(-1, 2, (x[0], 2 * shape[1], *layer.outputs))
        inputs = (
            random.standard_normal(x),
            random.standard_normal(w),
            whole + random.uniform(0.2, 0.8, whole.shape),
        )
        name = f"{list(x)} {list(w)} {dict(attributes)}"
        yield TestCase(name, inputs, attributes, ulps=64)
        more = random.standard_normal(w[0]), random.uniform(0.1, 1, shape)
        yield TestCase(f"{name} bias and mask", (*inputs, *more), attributes, ulps=64)
        yield TestCase(f"{name} mask", (*inputs, None, more[1]), attributes, ulps=64)


deform_conv = Op(
    "DeformConv",
    since=(19, 22),
    decompose=_body,
    decomposes_to=("Add", "Gather", "GridSample", "MatMul", "Mul", "Transpose"),
    reference=_reference,
    gradient=_gradient,
    cases=_cases,
)

OPS = (deform_conv,)
