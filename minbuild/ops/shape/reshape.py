"""Operators whose output has the bytes of their input: they cost nothing on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import Shape, TensorType
from minbuild.ir.dims import Dim, divide_exactly, product
from minbuild.ops.core.definition import (
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    normalized_axes,
    require_equal,
    same_as,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results

Cases = Callable[[np.random.Generator], Iterable[TestCase]]


def _shaped(ctx: OpContext, shape: Shape) -> Sequence[TensorType]:
    return (TensorType(ctx.element(), shape),)


def _reshape_shape(ctx: OpContext) -> Shape:
    shape, requested = ctx.shape(), ctx.dims(1)
    keep_zero = bool(ctx.attribute("allowzero", 0))
    dims: list[Dim] = [shape[i] if d == 0 and not keep_zero else d for i, d in enumerate(requested)]
    if -1 in dims:
        at = dims.index(-1)
        copied = (i for i, d in enumerate(ctx.dims(1)) if d == 0 and not keep_zero)
        kept = {i for i in copied if shape[i] != 0}  # equal factors, which may be sums
        whole = product(tuple(d for i, d in enumerate(shape) if i not in kept))
        rest = divide_exactly(
            whole, product(tuple(d for i, d in enumerate(dims) if i != at and i not in kept))
        )
        if rest is None:
            _match_what_stays(shape, dims, at)
            raise UnsupportedUse(
                f"cannot tell what -1 stands for when {list(shape)} becomes {list(requested)}"
            )
        dims[at] = rest
    require_equal(product(shape), product(dims), f"cannot reshape {list(shape)} to {list(requested)}")
    return tuple(dims)


def _match_what_stays(shape: Shape, dims: Sequence[Dim], at: int) -> None:
    """Raises ShapeMismatch where -1 at `at` is undetermined, but is determined if it stands for whole axes and the
    sizes behind it are those of the last axes: [batch, channels, 2, 2] becomes [-1, 64] when there are 16 channels."""
    behind = product(tuple(dims[at + 1 :]))
    if tuple(dims[:at]) != tuple(shape[:at]) or not isinstance(behind, int):
        return
    for first in range(len(shape) - 1, at, -1):
        last = product(shape[first:])
        if not isinstance(last, int):
            require_equal(last, behind, f"cannot reshape {list(shape)} to {list(dims)}")


def _flatten_shape(ctx: OpContext) -> Shape:
    shape, axis = ctx.shape(), ctx.axis(1)
    return product(shape[:axis]), product(shape[axis:])


def _axes(ctx: OpContext) -> tuple[int, ...] | None:
    if ctx.has(1):
        return tuple(int(a) for a in ctx.dims(1))  # type: ignore[arg-type]
    axes = ctx.attribute("axes")
    return None if axes is None else tuple(axes)


def _gone(ctx: OpContext) -> tuple[int, ...]:
    """The axes that Squeeze drops: all of size 1 unless given."""
    shape, axes = ctx.shape(), _axes(ctx)
    if axes is None:
        return tuple(i for i, d in enumerate(shape) if d == 1)
    gone = normalized_axes(axes, len(shape))
    for axis in gone:
        require_equal(shape[axis], 1, f"axis {axis} of {list(shape)} cannot be left out")
    return gone


def _squeeze_shape(ctx: OpContext) -> Shape:
    gone = _gone(ctx)
    return tuple(d for i, d in enumerate(ctx.shape()) if i not in gone)


def _new(ctx: OpContext) -> tuple[int, ...]:
    """The axes of the result that Unsqueeze adds."""
    axes = _axes(ctx) or ()
    return normalized_axes(axes, ctx.rank() + len(axes))


def _unsqueeze_shape(ctx: OpContext) -> Shape:
    new, rest = _new(ctx), iter(ctx.shape())
    return tuple(1 if i in new else next(rest) for i in range(ctx.rank() + len(new)))


# The references below also run on object arrays of dimensions, which is how shape arithmetic is followed.


def _same(attributes: Mapping[str, Any], x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    return x


def _reshape(attributes: Mapping[str, Any], x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    keep_zero = attributes.get("allowzero", 0)
    dims = [x.shape[i] if d == 0 and not keep_zero else int(d) for i, d in enumerate(shape.tolist())]
    return x.reshape(dims)


def _flatten(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    axis = attributes.get("axis", 1)
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


def _given_axes(attributes: Mapping[str, Any], axes: np.ndarray | None) -> tuple[int, ...] | None:
    found = attributes.get("axes") if axes is None else axes.ravel().tolist()
    return None if found is None else tuple(found)


def _squeeze(attributes: Mapping[str, Any], x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    return np.squeeze(x, _given_axes(attributes, axes))


def _unsqueeze(attributes: Mapping[str, Any], x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    return np.expand_dims(x, _given_axes(attributes, axes) or ())


def _passed_on(b: GradientBuilder) -> Results:
    return b.add("Identity", b.dy[0])


def _reshaped(b: GradientBuilder) -> Results:
    return b.dy[0].reshape_like(b.x[0])


def _squeezed(b: GradientBuilder) -> Results:
    gone = _gone(b.ctx)
    return b.dy[0].unsqueeze(gone) if gone else b.dy[0]


def _unsqueezed(b: GradientBuilder) -> Results:
    return b.dy[0].squeeze(_new(b.ctx))


def _cases(*variants: tuple[tuple[int, ...], Sequence[int] | None, Mapping[str, Any]]) -> Cases:
    """Shapes, what the second input holds, and attributes."""

    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for shape, second, attributes in variants:
            x = random.standard_normal(shape)
            inputs = (x,) if second is None else (x, np.array(second, np.int64))
            constant = frozenset(range(1, len(inputs)))
            yield TestCase(f"{list(shape)} {second} {dict(attributes)}", inputs, attributes, constant, ulps=0)

    return cases


_NEWEST = (21, 23, 24, 25)
identity = Op(
    "Identity",
    since=(1, 13, 14, 16, 19, *_NEWEST),
    infer=same_as(0),
    reference=_same,
    is_view=True,
    gradient=_passed_on,
    cases=_cases(((), None, {}), ((3, 5), None, {})),
)
reshape = Op(
    "Reshape",
    since=(5, 13, 14, 19, *_NEWEST),
    infer=lambda ctx: _shaped(ctx, _reshape_shape(ctx)),
    reference=_reshape,
    is_view=True,
    gradient=_reshaped,
    cases=_cases(((2, 6), (3, 4), {}), ((2, 6), (0, -1, 3), {}), ((), (1,), {})),
)
flatten = Op(
    "Flatten",
    since=(1, 9, 11, 13, *_NEWEST),
    infer=lambda ctx: _shaped(ctx, _flatten_shape(ctx)),
    reference=_flatten,
    is_view=True,
    gradient=_reshaped,
    cases=_cases(((2, 3, 4), None, {}), ((2, 3, 4), None, {"axis": 0}), ((2, 3), None, {"axis": -1})),
)
squeeze = Op(
    "Squeeze",
    since=(1, 11, 13, *_NEWEST),
    infer=lambda ctx: _shaped(ctx, _squeeze_shape(ctx)),
    reference=_squeeze,
    is_view=True,
    gradient=_squeezed,
    cases=_cases(((1, 3, 1), None, {}), ((1, 3, 1), (-1,), {}), ((2, 1), None, {"axes": (1,)})),
)
unsqueeze = Op(
    "Unsqueeze",
    since=(1, 11, 13, *_NEWEST),
    infer=lambda ctx: _shaped(ctx, _unsqueeze_shape(ctx)),
    reference=_unsqueeze,
    is_view=True,
    gradient=_unsqueezed,
    cases=_cases(((3,), (0, -1), {}), ((), (0,), {}), ((2, 3), None, {"axes": (1,)})),
)

OPS = (identity, reshape, flatten, squeeze, unsqueeze)
