"""Transpose, and the operators that are a Transpose between two Reshapes: DepthToSpace and SpaceToDepth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import Shape, TensorType
from minbuild.ir.dims import Dim, divide_exactly
from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.pattern import Match, Replacement, Rewrite, RewritingOp
from minbuild.ops.core.value import Results
from minbuild.ops.movement import strided_copy as _strided_copy


def transposition(shape: Shape, order: Sequence[int]) -> _strided_copy.Movement:
    """Axis i of the result is axis `order[i]` of a source of `shape`."""
    axes = tuple(_strided_copy.whole(shape[o]) for o in order)
    return _strided_copy.Movement(axes, tuple(int(i) for i in np.argsort(order)))


def _order(attributes: Mapping[str, Any], rank: int) -> tuple[int, ...]:
    """The axes of the source in the order of the result; reversed unless given."""
    order = tuple(a + rank if a < 0 else a for a in attributes.get("perm") or range(rank)[::-1])
    if sorted(order) != list(range(rank)):
        raise UnsupportedUse(f"perm {list(order)} is no order of {rank} axes")
    return order


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    shape = ctx.shape()
    return (TensorType(ctx.element(), tuple(shape[o] for o in _order(ctx.attributes, len(shape)))),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return np.transpose(x, attributes.get("perm") or None)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    movement = transposition(ctx.shape(), _order(ctx.attributes, ctx.rank()))
    return (_strided_copy.call_move(ctx.result(), ctx.name(0), ctx.element(), movement),)


def _gradient(b: GradientBuilder) -> Results:
    order = _order(b.ctx.attributes, b.ctx.rank())
    return b.dy[0].transpose(tuple(int(i) for i in np.argsort(order)))


def _keeps_order(match: Match) -> Replacement | None:
    """Axes of one element may go anywhere: the bytes stay as they are."""
    shape = match.types["x"].shape
    assert shape is not None
    moved = [o for o in _order(match.attributes(":Transpose"), len(shape)) if shape[o] != 1]
    return Replacement(":Identity", ("x",), {}) if moved == sorted(moved) else None


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, order in (
        ((), None),
        ((5,), None),
        ((3, 5), None),
        ((37, 50), (1, 0)),
        ((2, 3, 4, 5), (0, 2, 1, 3)),
        ((2, 7, 4, 5), (0, 2, 3, 1)),
        ((2, 17, 18, 3), (0, 3, 1, 2)),
        ((2, 3, 4, 5), (3, 1, 0, 2)),
        ((2, 3, 4), None),
        ((1, 3, 1, 4), (2, 1, 0, 3)),
        ((1, 3, 4), (0, -1, 1)),
        ((2, 3, 2, 3, 2), (4, 2, 0, 3, 1)),
        ((2, 1, 2, 3, 2, 2, 1, 2), (7, 5, 3, 1, 0, 2, 4, 6)),
    ):
        attributes = {} if order is None else {"perm": order}
        name = f"{list(shape)} {list(order or ())}"
        yield TestCase(name, (random.standard_normal(shape),), attributes, ulps=0)
    for dtype in (np.int8, np.bool_, np.int16, np.float16, np.uint32, np.int64):
        x = random.integers(0, 2, (4, 3, 5)).astype(dtype)
        yield TestCase(f"of {np.dtype(dtype)}", (x,), {"perm": (2, 0, 1)}, ulps=0)


transpose = RewritingOp(
    "Transpose",
    since=(1, 13, 21, 23, 24, 25),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(_strided_copy.move_kernel,),
    cases=_cases,
    gradient=_gradient,
    rewrites=(Rewrite(("Transpose", "x"), _keeps_order),),
)


# ------------------------------------------------------------------- blocks of pixels, and channels


def _block(attributes: Mapping[str, Any]) -> int:
    return int(attributes["blocksize"])


def _part(dim: Dim, by: int) -> Dim:
    part = divide_exactly(dim, by)
    if part is None:
        raise UnsupportedUse(f"a size of {dim} cannot be divided by {by}")
    return part


def _shuffle(attributes: Mapping[str, Any], shape: Shape, to_space: bool) -> tuple[Shape, tuple[int, ...]]:
    """The source as six axes, and their order in the result."""
    b = _block(attributes)
    if len(shape) != 4:
        raise UnsupportedUse(f"it works on images [N, C, H, W], not on {list(shape)}")
    n, c, h, w = shape
    first = attributes.get("mode", "DCR") == "CRD"  # channels before their blocks
    if to_space:
        depth = _part(c, b * b)
        return (
            ((n, depth, b, b, h, w), (0, 1, 4, 2, 5, 3))
            if first
            else (
                (n, b, b, depth, h, w),
                (0, 3, 4, 1, 5, 2),
            )
        )
    return (n, c, _part(h, b), b, _part(w, b), b), (0, 1, 3, 5, 2, 4) if first else (0, 3, 5, 1, 2, 4)


def _shuffle_infer(to_space: bool) -> Callable[[OpContext], Sequence[TensorType]]:
    def infer(ctx: OpContext) -> Sequence[TensorType]:
        split, order = _shuffle(ctx.attributes, ctx.shape(), to_space)
        n, *sizes = (split[o] for o in order)
        if to_space:
            shape: Shape = (n, sizes[0], sizes[1] * sizes[2], sizes[3] * sizes[4])
        else:
            shape = (n, sizes[0] * sizes[1] * sizes[2], sizes[3], sizes[4])
        return (TensorType(ctx.element(), shape),)

    return infer


def _shuffle_reference(to_space: bool) -> Callable[..., np.ndarray]:
    def reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
        split, order = _shuffle(attributes, x.shape, to_space)
        sizes: list[Any] = list(split)
        y = x.reshape(sizes).transpose(order)
        n, a, b, c, d, e = y.shape
        return y.reshape((n, a, b * c, d * e) if to_space else (n, a * b * c, d, e))

    return reference


def _lower_shuffle(to_space: bool) -> Callable[[OpContext], Sequence[KernelCall]]:
    def lower(ctx: OpContext) -> Sequence[KernelCall]:
        movement = transposition(*_shuffle(ctx.attributes, ctx.shape(), to_space))
        return (_strided_copy.call_move(ctx.result(), ctx.name(0), ctx.element(), movement),)

    return lower


def _shuffle_gradient(opposite: str) -> Callable[[GradientBuilder], Results]:
    def gradient(b: GradientBuilder) -> Results:
        """The way back."""
        return b.add(opposite, b.dy[0], **b.ctx.attributes)

    return gradient


def _shuffle_cases(to_space: bool) -> Callable[[np.random.Generator], Iterable[TestCase]]:
    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for mode in ("DCR", "CRD"):
            for n, depth, h, w, block in ((1, 1, 1, 1, 2), (2, 3, 2, 3, 2), (1, 2, 3, 1, 3), (2, 2, 2, 2, 1)):
                shape = (n, depth * block**2, h, w) if to_space else (n, depth, h * block, w * block)
                for dtype in (np.float64, np.uint8):
                    x = (random.standard_normal(shape) * 9).astype(dtype)
                    attributes = {"blocksize": block, "mode": mode}
                    yield TestCase(f"{list(shape)} {attributes} {np.dtype(dtype)}", (x,), attributes, ulps=0)

    return cases


def _shuffling(name: str, opposite: str, to_space: bool) -> Op:
    return Op(
        name,
        since=(1, 11, 13, 28),
        infer=_shuffle_infer(to_space),
        reference=_shuffle_reference(to_space),
        lower=_lower_shuffle(to_space),
        kernels=(_strided_copy.move_kernel,),
        cases=_shuffle_cases(to_space),
        gradient=_shuffle_gradient(opposite),
    )


depth_to_space = _shuffling("DepthToSpace", "SpaceToDepth", True)
space_to_depth = _shuffling("SpaceToDepth", "DepthToSpace", False)

OPS = (transpose, depth_to_space, space_to_depth)
