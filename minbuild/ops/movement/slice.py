"""Slice and its gradient: every nth element of a range along some axes, forwards or backwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minbuild.ir import Shape, TensorType
from minbuild.ir.dims import Dim, Poly, Symbol, ceil_div, dim_max, dim_min, evaluate, symbols_in
from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase, UnsupportedUse, in_shape_of
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.pattern import Match, Replacement, Rewrite, RewritingOp
from minbuild.ops.core.value import Results
from minbuild.ops.movement import strided_copy as _strided_copy
from minbuild.ops.movement.strided_copy import Along, Axis
from minbuild.ops.shape import fill as _fill


@dataclass(frozen=True)
class Range:
    """`size` places of an axis: `start`, `start + step`, ..."""

    start: Dim
    size: Dim
    step: int = 1


def _least(dim: Dim) -> int | None:
    """The smallest value that a dimension can have, where that is known: sizes of inputs are at least 1."""
    if not isinstance(dim, Poly):
        return dim
    grows = all(c > 0 and all(isinstance(a, Symbol) for a in atoms) for atoms, c in dim.terms if atoms)
    return evaluate(dim, dict.fromkeys(symbols_in(dim), 1)) if grows else None


def _not_below_zero(dim: Dim) -> Dim:
    """max(dim, 0)"""
    least = _least(dim)
    return dim if least is not None and least >= 0 else dim_max(dim, 0)


def _place(index: Dim, dim: Dim, low: int, high: Dim) -> Dim:
    """A start or end, counted from the front and brought into `low`..`high`. A free size is taken to lie within: the
    device refuses to go where nothing is. One with a minus before it counts from the end."""
    if isinstance(index, Poly):
        back = _least(-index)
        if back is None or back <= 0:
            return index
        return _not_below_zero(dim + index) if low == 0 else dim_max(dim + index, low)
    if isinstance(dim, int) and isinstance(high, int):
        return min(max(index + dim if index < 0 else index, low), high)
    if index >= 2**31 - 1:
        return high
    if index <= -(2**31):
        return low
    if index < 0:
        return _not_below_zero(dim + index) if low == 0 else dim_max(dim + index, low)
    least = _least(high)
    return index if least is not None and index <= least else dim_min(index, high)


def range_of(dim: Dim, start: Dim, end: Dim, step: int) -> Range:
    """The range that Slice takes of an axis of `dim` elements, as Python's `[start:end:step]` does. `start`, `end`
    and `step` are as in the node, `dim` may be symbolic."""
    if step == 0:
        raise UnsupportedUse("a step of 0 goes nowhere")
    if step > 0:
        first, last = _place(start, dim, 0, dim), _place(end, dim, 0, dim)
        return Range(first, ceil_div(_not_below_zero(last - first), step), step)
    first, last = _place(start, dim, -1, dim - 1), _place(end, dim, -1, dim - 1)
    size = ceil_div(_not_below_zero(first - last), -step)
    return Range(0 if size == 0 else first, size, step)


def _numbers(ctx: OpContext, i: int, name: str) -> tuple[Dim, ...] | None:
    """Input `i`, or the attribute that older opsets have instead."""
    if ctx.has(i):
        return ctx.dims(i)
    given = ctx.attribute(name)
    return None if given is None else tuple(given)


def _ranges(ctx: OpContext, shape: Shape, first: int) -> list[Range]:
    """The ranges along each axis of `shape`; starts, ends, axes and steps are the inputs from `first` on."""
    starts, ends = _numbers(ctx, first, "starts"), _numbers(ctx, first + 1, "ends")
    if starts is None or ends is None:
        raise UnsupportedUse("neither inputs nor attributes say where the slice starts and ends")
    axes = _numbers(ctx, first + 2, "axes") or tuple(range(len(starts)))
    steps = _numbers(ctx, first + 3, "steps") or (1,) * len(starts)
    ranges = [Range(0, dim) for dim in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not isinstance(axis, int) or not isinstance(step, int) or not -len(shape) <= axis < len(shape):
            raise UnsupportedUse(f"axis {axis} with step {step} is none of {list(shape)}")
        ranges[axis] = range_of(shape[axis], start, end, step)
    return ranges


def _slices(
    rank: int, starts: np.ndarray, ends: np.ndarray, axes: np.ndarray | None, steps: np.ndarray | None
) -> tuple[slice, ...]:
    """The same as numpy's index."""
    taken = [slice(None)] * rank
    order = range(len(starts)) if axes is None else axes.tolist()
    paces = [1] * len(starts) if steps is None else steps.tolist()
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), order, paces, strict=True):
        taken[axis] = slice(int(start), int(end), int(step))
    return tuple(taken)


# ----------------------------------------------------------------------------------------------------- Slice


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    ranges = _ranges(ctx, ctx.shape(), 1)
    return (TensorType(ctx.element(), tuple(r.size for r in ranges)),)


def _reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    starts: np.ndarray | None = None,
    ends: np.ndarray | None = None,
    axes: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> np.ndarray:
    if starts is None or ends is None:
        starts, ends = np.array(attributes["starts"]), np.array(attributes["ends"])
        axes = np.array(attributes["axes"]) if "axes" in attributes else None
    return x[_slices(x.ndim, starts, ends, axes, steps)]


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    ranges = zip(ctx.shape(), _ranges(ctx, ctx.shape(), 1), strict=True)
    axes = [Axis(r.size, Along(r.size), Along(dim, r.start, r.step)) for dim, r in ranges]
    return (_strided_copy.call_move(ctx.result(), ctx.name(0), ctx.element(), _strided_copy.straight(axes)),)


def _gradient(b: GradientBuilder) -> Results:
    """Elements outside of the slice have no gradient."""
    limits = b.x[1:] if b.has(1) else tuple(b.integers(b.ctx.attribute(n)) for n in ("starts", "ends"))
    if not b.has(1) and b.ctx.attribute("axes") is not None:
        limits = (*limits, b.integers(b.ctx.attribute("axes")))
    return b.microsoft("SliceGrad", b.dy[0], b.x[0].shape(), *limits)


def _takes_all(match: Match) -> Replacement | None:
    """A slice of everything. A reversed one has the same type, so steps must be known to be 1."""
    steps = match.constants.get("steps")
    forwards = "steps" not in match.names or (steps is not None and np.all(steps == 1))
    same = match.types["x"] == match.result
    return Replacement(":Identity", ("x",), {}) if same and forwards else None


_Limits = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None, tuple[int, ...] | None]
_FAR = 2**63 - 1
_VARIANTS: tuple[tuple[tuple[int, ...], _Limits], ...] = (
    ((7,), ((2,), (5,), None, None)),
    ((7,), ((-3,), (_FAR,), None, None)),
    ((7,), ((6,), (-100,), None, (-1,))),
    ((7,), ((-1,), (-_FAR - 1,), (0,), (-2,))),
    ((7,), ((_FAR,), (2,), (0,), (-3,))),
    ((7,), ((0,), (_FAR,), None, (100,))),
    ((3, 5), ((1, 0), (3, 4), None, None)),
    ((3, 5), ((1,), (4,), (-1,), None)),
    ((3, 5), ((0,), (3,), (0,), (2,))),
    ((4, 6, 5), ((1, 5), (3, 0), (0, 1), (1, -2))),
    ((2, 3, 4, 5), ((0, 0), (4, 5), (2, 3), (2, 2))),
    ((2, 3, 4, 5), ((1,), (2,), (1,), None)),
    ((2, 3, 4, 5), ((0, 0, 0, 0), (2, 3, 4, 5), (0, 1, 2, 3), (1, 1, 1, 1))),
    ((5, 4), ((3, 1), (0, 3), (0, 1), (-1, 1))),
)


def _variants() -> Iterator[tuple[str, tuple[int, ...], tuple[np.ndarray | None, ...], frozenset[int]]]:
    for shape, limits in _VARIANTS:
        arrays = tuple(None if n is None else np.array(n, np.int64) for n in limits)
        while arrays[-1] is None:
            arrays = arrays[:-1]
        constant = frozenset(i + 1 for i, a in enumerate(arrays) if a is not None)
        yield f"{list(shape)} {limits}".replace(str(_FAR), "far"), shape, arrays, constant


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, shape, limits, constant in _variants():
        yield TestCase(name, (random.standard_normal(shape), *limits), constant=constant, ulps=0)
    x, constant = random.integers(0, 2, (4, 6)), frozenset({1, 2})
    for dtype in (np.bool_, np.int8, np.float16, np.int64):
        yield TestCase(
            f"of {np.dtype(dtype)}",
            (x.astype(dtype), np.array([1, 2]), np.array([3, 5], np.int64)),
            constant=constant,
            ulps=0,
        )
    attributes = {"starts": (1, -2), "ends": (3, 1000), "axes": (0, 1)}
    yield TestCase("attributes", (random.standard_normal((4, 5)),), attributes, ulps=0)


slice_op = RewritingOp(
    "Slice",
    since=(1, 10, 11, 13),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(_strided_copy.move_kernel,),
    cases=_cases,
    gradient=_gradient,
    rewrites=tuple(
        Rewrite(("Slice", "x", *inputs), _takes_all)
        for inputs in ((), ("a", "b"), ("a", "b", "axes"), ("a", "b", "axes", "steps"))
    ),
)


# -------------------------------------------------------------------------------------------------- SliceGrad


def _grad_reference(
    attributes: Mapping[str, Any],
    dy: np.ndarray,
    shape: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    axes: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> np.ndarray:
    dx = np.zeros([int(d) for d in shape.tolist()], dy.dtype)
    dx[_slices(dx.ndim, starts, ends, axes, steps)] = dy
    return dx


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    shape = ctx.result_shape()
    ranges = _ranges(ctx, shape, 2)
    axes = [
        Axis(r.size, Along(dim, r.start, r.step), Along(r.size)) for dim, r in zip(shape, ranges, strict=True)
    ]
    return (
        _fill.call_fill(ctx.result(), ctx.element()),
        _strided_copy.call_move(ctx.result(), ctx.name(0), ctx.element(), _strided_copy.straight(axes)),
    )


def _grad_gradient(b: GradientBuilder) -> Results:
    return b.add("Slice", b.dy[0], *b.x[2:])


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, shape, limits, constant in _variants():
        dy = random.standard_normal(_reference({}, np.zeros(shape), *limits).shape)
        inputs = (dy, np.array(shape), *limits)
        yield TestCase(name, inputs, constant=frozenset({1, *(i + 1 for i in constant)}), ulps=0)


slice_grad = Op(
    "SliceGrad",
    domain="com.microsoft",
    infer=in_shape_of(1),
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(_fill.fill_kernel, _strided_copy.move_kernel),
    cases=_grad_cases,
    gradient=_grad_gradient,
)

OPS = (slice_op, slice_grad)
