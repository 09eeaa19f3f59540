"""Tile: a tensor side by side with itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ir.dims import Dim
from minbuild.ops.core.definition import KernelCall, OpContext, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.pattern import Rewrite, RewritingOp, identity
from minbuild.ops.core.value import Results, Value
from minbuild.ops.movement import strided_copy as _strided_copy
from minbuild.ops.movement.strided_copy import Along, Axis, Movement


def _repeats(ctx: OpContext) -> tuple[Dim, ...]:
    repeats = ctx.dims(1)
    if len(repeats) != ctx.rank():
        raise UnsupportedUse(f"{len(repeats)} repeats do not fit {ctx.rank()} axes")
    return repeats


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    shape = tuple(d * r for d, r in zip(ctx.shape(), _repeats(ctx), strict=True))
    return (TensorType(ctx.element(), shape),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    return np.tile(x, [int(r) for r in repeats.tolist()])


def _movement_of(ctx: OpContext) -> Movement:
    """Every axis twice: how often, during which the source stands still, and then along it."""
    axes: list[Axis] = []
    order = []
    for dim, repeat in zip(ctx.shape(), _repeats(ctx), strict=True):
        if repeat != 1:
            axes.append(Axis(repeat, Along(repeat), None))
        order.append(len(axes))
        axes.append(_strided_copy.whole(dim))
    return Movement(tuple(axes), tuple(order))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return (_strided_copy.call_move(ctx.result(), ctx.name(0), ctx.element(), _movement_of(ctx)),)


def _gradient(b: GradientBuilder) -> Results:
    """The sum over all copies."""
    shape, repeats = b.ctx.shape(), _repeats(b.ctx)
    apart: list[Dim] = []
    over = []
    for dim, repeat in zip(shape, repeats, strict=True):
        if repeat != 1:
            over.append(len(apart))
            apart.append(repeat)
        apart.append(dim)
    dy = b.dy[0]
    if not over:
        return b.add("Identity", dy)
    fixed = all(isinstance(d, int) for d in apart)
    sizes = b.integers(apart) if fixed else _interleaved(b, repeats)
    return b.add("Reshape", dy, sizes).sum(over, keepdims=False)


def _interleaved(b: GradientBuilder, repeats: Sequence[Dim]) -> Value:
    """The same sizes where some are known to the device only."""
    own, parts = b.x[0].shape(), []
    for i, repeat in enumerate(repeats):
        for source, needed in ((b.x[1], repeat != 1), (own, True)):
            if needed:
                parts.append(b.add("Slice", source, b.integers([i]), b.integers([i + 1])))
    return b.add("Concat", *parts, axis=0)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, repeats in (
        ((5,), (3,)),
        ((3, 4), (2, 1)),
        ((3, 4), (1, 2)),
        ((3, 4), (2, 3)),
        ((1, 3, 1), (4, 1, 5)),
        ((2, 3, 4), (2, 2, 2)),
        ((2, 3, 4, 5), (1, 2, 1, 3)),
        ((2, 3), (1, 1)),
    ):
        for dtype in (np.float64, np.bool_, np.int16):
            x = (random.standard_normal(shape) * 2).astype(dtype)
            name = f"{list(shape)} by {list(repeats)} {np.dtype(dtype)}"
            yield TestCase(name, (x, np.array(repeats)), constant=frozenset({1}), ulps=0)


tile = RewritingOp(
    "Tile",
    since=(6, 13),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(_strided_copy.move_kernel,),
    cases=_cases,
    gradient=_gradient,
    rewrites=(Rewrite(("Tile", "x", "repeats"), identity),),
)

OPS = (tile,)
