"""Pad: more elements, or fewer, at both ends of some axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import Shape, TensorType
from minbuild.ir.dims import Dim
from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.movement import strided_copy as _strided_copy
from minbuild.ops.movement.strided_copy import Along, Axis
from minbuild.ops.shape import fill as _fill

_Pads = list[tuple[Dim, Dim]]  # before and behind every axis


def _pads(ctx: OpContext) -> _Pads:
    """From input 1, or the attribute of opset 2; input 3 names the axes they are for."""
    rank = ctx.rank()
    given = ctx.dims(1) if ctx.has(1) else tuple(ctx.attribute("pads", ctx.attribute("paddings", ())))
    axes = [int(a) for a in ctx.dims(3)] if ctx.has(3) else list(range(rank))  # type: ignore[arg-type]
    if len(given) != 2 * len(axes) or any(not -rank <= a < rank for a in axes):
        raise UnsupportedUse(f"{len(given)} pads do not fit axes {axes} of {rank}")
    pads: _Pads = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        pads[axis] = given[i], given[len(axes) + i]
    return pads


def _mode(attributes: Mapping[str, Any]) -> str:
    mode = attributes.get("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise UnsupportedUse(f"mode {mode} is not known")
    return str(mode)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    _mode(ctx.attributes)
    pads = _pads(ctx)
    shape = tuple(before + d + behind for d, (before, behind) in zip(ctx.shape(), pads, strict=True))
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise UnsupportedUse(f"it takes more away from {list(ctx.shape())} than there is")
    return (TensorType(ctx.element(), shape),)


def places(mode: str, dim: int, before: int, behind: int) -> np.ndarray:
    """Which element of an axis of `dim` stands in each place of the padded one. `mode` is Pad's; `before` and
    `behind` are the elements added on both sides, cut off where negative."""
    at = np.arange(-before, dim + behind)
    if mode == "edge":
        return np.clip(at, 0, dim - 1)
    if mode == "wrap":
        return at % dim
    period = max(2 * (dim - 1), 1)
    at = at % period
    return np.minimum(at, period - at) if dim > 1 else at * 0


def _reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    pads: np.ndarray | None = None,
    value: np.ndarray | None = None,
    axes: np.ndarray | None = None,
) -> np.ndarray:
    flat = list(attributes.get("pads", attributes.get("paddings", ()))) if pads is None else pads.tolist()
    order = list(range(x.ndim)) if axes is None else axes.tolist()
    ends = [(int(b), int(e)) for b, e in zip(flat[: len(order)], flat[len(order) :], strict=True)]
    mode = _mode(attributes)
    number = attributes.get("value", 0) if value is None else value.reshape(()).item()
    for axis, (before, behind) in zip(order, ends, strict=True):
        if mode != "constant":
            x = np.take(x, places(mode, x.shape[axis], before, behind), axis)
            continue
        kept = slice(max(-before, 0), x.shape[axis] - max(-behind, 0))
        x = x[(slice(None),) * (axis % x.ndim) + (kept,)]
        widths = [(0, 0)] * x.ndim
        widths[axis] = max(before, 0), max(behind, 0)
        x = np.pad(x, widths, constant_values=number)
    return x


def _indices(ctx: OpContext) -> list[tuple[int, np.ndarray]]:
    """Every axis along which elements repeat, and which ones stand there."""
    mode, found = _mode(ctx.attributes), []
    for axis, (dim, (before, behind)) in enumerate(zip(ctx.shape(), _pads(ctx), strict=True)):
        if (before, behind) == (0, 0):
            continue
        if not (isinstance(dim, int) and isinstance(before, int) and isinstance(behind, int)) or dim == 0:
            raise UnsupportedUse(
                f"mode {mode} needs axis {axis}, of size {dim}, to be known when the trainer is built"
            )
        found.append((axis, places(mode, dim, before, behind)))
    return found


def _free_body(b: GraphBuilder) -> Results:
    """Axes of free sizes, padded with slices of themselves; None where there are none."""
    mode, ctx = _mode(b.ctx.attributes), b.ctx
    pads = _pads(ctx)
    free = [a for a, d in enumerate(ctx.shape()) if not isinstance(d, int) and pads[a] != (0, 0)]
    if mode == "constant" or not free:
        return None
    x = b.x[0]
    for axis in free:
        before, behind = pads[axis]
        if not isinstance(before, int) or not isinstance(behind, int) or before < 0 or behind < 0:
            raise UnsupportedUse(f"mode {mode} takes elements away from axis {axis}, whose size is free")
        front, back = _repeated(mode, before, behind)
        pieces = [x]
        if before:
            pieces.insert(0, b.add("Gather", x, b.integers(front), axis=axis))
        if behind:
            pieces.append(b.add("Gather", x, b.integers(back), axis=axis))
        x = b.add("Concat", *pieces, axis=axis)
    rest = [(0, 0) if axis in free else ends for axis, ends in enumerate(pads)]
    if any(ends != (0, 0) for ends in rest):
        flat = b.integers([*(before for before, _ in rest), *(behind for _, behind in rest)])
        x = b.add("Pad", x, flat, mode=mode)
    return (x,)


def _repeated(mode: str, before: int, behind: int) -> tuple[Sequence[int], Sequence[int]]:
    """Which elements stand in front of an axis and behind it, counted from its ends, which it is long enough for."""
    if mode == "edge":
        return (0,) * before, (-1,) * behind
    if mode == "wrap":
        return range(-before, 0), range(behind)
    return range(before, 0, -1), range(-2, -2 - behind, -1)


def _body(b: GraphBuilder) -> Results:
    """But for constants, padding takes elements that are there."""
    if _mode(b.ctx.attributes) == "constant":
        return None
    if (free := _free_body(b)) is not None:
        return free
    x = b.x[0]
    for axis, at in _indices(b.ctx):
        x = b.add("Gather", x, b.integers(at.tolist()), axis=axis)
    return x


def _kept(dim: Dim, before: Dim, behind: Dim) -> Axis:
    """The part of an axis that remains."""
    if not isinstance(before, int) or not isinstance(behind, int):
        raise UnsupportedUse("pads must be numbers, not sizes of inputs")
    size = dim + min(before, 0) + min(behind, 0)
    return Axis(size, Along(before + dim + behind, max(before, 0)), Along(dim, max(-before, 0)))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    axes = [_kept(dim, *ends) for dim, ends in zip(ctx.shape(), _pads(ctx), strict=True)]
    move = _strided_copy.call_move(ctx.result(), ctx.name(0), ctx.element(), _strided_copy.straight(axes))
    if all(axis.result.takes_all(axis.size) for axis in axes):
        return (move,)
    value = ctx.content(2)
    if ctx.has(2) and value is None:
        return (_fill.call_fill(ctx.result(), ctx.element(), tensor=ctx.name(2)), move)
    number = ctx.attribute("value", 0) if value is None else value.reshape(()).item()
    return (_fill.call_fill(ctx.result(), ctx.element(), number), move)


def _gradient(b: GradientBuilder) -> Results:
    """Padding is removed from the gradient; cropped elements have gradient zero. Elements that were repeated get
    the sum of their copies' gradients."""
    ctx = b.ctx
    if _mode(ctx.attributes) == "constant":
        flat = [-n for n in (*(p for p, _ in _pads(ctx)), *(p for _, p in _pads(ctx)))]
        if b.opset >= 11:
            return b.add("Pad", b.dy[0], b.integers(flat))
        return b.add("Pad", b.dy[0], pads=tuple(flat))
    dy = b.dy[0]
    shape: Shape = _infer(ctx)[0].shape or ()
    for axis, at in reversed(_indices(ctx)):
        shape = (*shape[:axis], ctx.shape()[axis], *shape[axis + 1 :])
        dy = b.microsoft("GatherGrad", _shape_before(b, shape, axis), b.integers(at.tolist()), dy, axis=axis)
    return dy


def _shape_before(b: GradientBuilder, shape: Shape, axis: int) -> Value:
    """A shape as a value: numbers, or the sizes of x along axes up to `axis` and of dy behind."""
    if all(isinstance(d, int) for d in shape):
        return b.integers(shape)
    front = b.add("Slice", b.dy[0].shape(), b.integers([0]), b.integers([axis]))
    here = b.integers([b.ctx.shape()[axis]])
    padded = dict(_indices(b.ctx))
    rest = [
        b.add("Slice", b.x[0].shape(), b.integers([i]), b.integers([i + 1]))
        if i in padded
        else b.add("Slice", b.dy[0].shape(), b.integers([i]), b.integers([i + 1]))
        for i in range(axis + 1, len(shape))
    ]
    return b.add("Concat", front, here, *rest, axis=0)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, pads in (
        ((5,), (2, 3)),
        ((3, 4), (0, 1, 2, 0)),
        ((3, 4), (-1, 1, 0, -2)),
        ((2, 3, 5, 4), (0, 0, 1, 1, 0, 0, 1, 1)),
        ((1, 2, 3, 4), (0, 0, 2, -1, 0, 1, 2, 1)),
        ((2, 3, 4), (0, 0, 0, 0, 0, 0)),
    ):
        for mode in ("constant", "edge", "reflect", "wrap"):
            inputs = (random.standard_normal(shape), np.array(pads))
            yield TestCase(f"{list(shape)} {pads} {mode}", inputs, {"mode": mode}, frozenset({1}), ulps=0)
    far = np.array([9, 8]), np.array([0, 7, 0, 8])
    for mode in ("edge", "reflect", "wrap"):
        yield TestCase(
            f"far {mode}", (random.standard_normal(4), far[0]), {"mode": mode}, frozenset({1}), ulps=0
        )
        x = random.standard_normal((3, 1))
        yield TestCase(f"of one {mode}", (x, far[1]), {"mode": mode}, frozenset({1}), ulps=0)
    yield from _value_cases(random)


def _value_cases(random: np.random.Generator) -> Iterable[TestCase]:
    pads, axes = np.array([1, 2, 0, 3]), np.array([-1, 0])
    for dtype in (np.float64, np.int64, np.int8, np.bool_, np.uint16):
        x = random.integers(0, 2, (3, 4)).astype(dtype)
        value = np.array(1, dtype)
        for given, constant in ((None, {1, 3}), (value, {1, 2, 3}), (value[None], {1, 2})):
            inputs = (x, pads, given, axes if 3 in constant else None)
            name = f"{np.dtype(dtype)} {given} {sorted(constant)}"
            yield TestCase(name, inputs, {}, frozenset(constant), ulps=0)
        yield TestCase(
            f"{np.dtype(dtype)} fed value", (x, pads, value), {}, frozenset({1}), ulps=0, smooth=False
        )
    attributes = {"pads": (1, 0, 2, 1), "value": 2.5}
    yield TestCase("attributes", (random.standard_normal((2, 3)),), attributes, ulps=0)


pad = Op(
    "Pad",
    since=(1, 2, 11, 13, 18, 19, 21, 23, 24, 25),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(_fill.fill_kernel, _strided_copy.move_kernel),
    decompose=_body,
    decompose_for_grad=_free_body,
    decomposes_to=("Concat", "Gather"),
    cases=_cases,
    gradient=_gradient,
)

OPS = (pad,)
