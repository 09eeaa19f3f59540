"""Concat, also as ORT's gradients use it: one copy for every piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import (
    INT64,
    STORAGE_TYPES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    require_equal,
    storage_type,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.pattern import Match, Replacement, Rewrite, RewritingOp
from minbuild.ops.core.value import Results
from minbuild.ops.shape.shape import dims_array

piece_kernel = KernelFunction(
    "copy_piece",
    ("y:T=", "x:T", "place:extent"),
    params=("out:int",),
    types={"T": STORAGE_TYPES},
)


def call_piece(y: str, x: str, place: TensorType, element: ElementType, out: bool) -> KernelCall:
    """A copy of piece `x` into `y`, or where `out`, of piece `y` out of `x`. `place` is the type of the table of rows
    and columns, `element` that of the data."""
    return piece_kernel.call(y, x, place, types=(storage_type(element),), params=(out,))


def pieces(sizes: Sequence[Dim], shape: Shape, axis: int) -> Iterator[TensorType]:
    """Where each piece stands in a tensor of `shape`: [rows, first column]. `sizes` are those of the pieces along
    `axis`."""
    rows, inner = product(shape[:axis]), product(shape[axis + 1 :])
    for start in accumulate(sizes, initial=0):
        yield TensorType(ElementType.UINT8, (rows, start * inner))


# ---------------------------------------- concatenation


def _sizes(ctx: OpContext) -> list[Dim]:
    """The inputs' sizes along the axis."""
    axis = ctx.axis(1)
    return [ctx.shape(i)[axis] for i in range(len(ctx.inputs))]


def _concat_infer(ctx: OpContext) -> Sequence[TensorType]:
    axis, shape = ctx.axis(1), ctx.shape()
    for i in range(1, len(ctx.inputs)):
        if ctx.rank(i) != len(shape):
            raise UnsupportedUse(f"cannot join {list(shape)} with {list(ctx.shape(i))}: their ranks differ")
        for at, size in enumerate(ctx.shape(i)):
            if at != axis:
                require_equal(
                    shape[at], size, f"cannot join {list(shape)} with {list(ctx.shape(i))} along axis {axis}"
                )
    total: Dim = sum(_sizes(ctx), 0)
    return (TensorType(ctx.element(), shape[:axis] + (total,) + shape[axis + 1 :]),)


def _concat_reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> np.ndarray:
    return np.concatenate(inputs, attributes.get("axis", 1))


def _lower_concat(ctx: OpContext) -> Sequence[KernelCall]:
    places = pieces(_sizes(ctx), ctx.result_shape(), ctx.axis(1))
    return [
        call_piece(ctx.result(), name, place, ctx.element(), out=False)
        for i, (name, place) in enumerate(zip(ctx.names, places, strict=False))
        if product(ctx.shape(i)) != 0
    ]


def _concat_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axis, sizes in (
        ((5,), 0, (1, 3)),
        ((2, 3), 1, (4, 1, 7)),
        ((2, 3, 4), -3, (2, 1)),
        ((2, 3, 4, 5), 1, (3, 3)),
        ((3, 2, 1), -1, (1, 2, 1, 5)),
        ((2, 3), 0, (3,)),
        ((2, 3), 1, (0, 2)),
    ):
        inputs = [random.standard_normal(_resized(shape, axis, size)) for size in sizes]
        name, empty = f"{list(shape)} axis {axis}, {list(sizes)}", {i for i, s in enumerate(sizes) if s == 0}
        yield TestCase(name, tuple(inputs), {"axis": axis}, frozenset(empty), ulps=0)
    numbers = tuple(random.integers(0, 2, (3, size)) for size in (2, 5))
    for dtype in (np.int64, np.int32, np.bool_, np.float16):
        yield TestCase(f"of {np.dtype(dtype)}", tuple(n.astype(dtype) for n in numbers), {"axis": 1}, ulps=0)


def _resized(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    at = axis % len(shape)
    return shape[:at] + (size,) + shape[at + 1 :]


def _gradient(b: GradientBuilder) -> Results:
    """The pieces, cut apart again. Sizes that inputs choose are an output of ConcatTraining."""
    axis, sizes = b.ctx.axis(1), _sizes(b.ctx)
    if all(isinstance(size, int) for size in sizes):
        if b.opset >= 13:
            return tuple(b.many(len(sizes), "Split", b.dy[0], b.integers(sizes), axis=axis))
        return tuple(b.many(len(sizes), "Split", b.dy[0], axis=axis, split=tuple(sizes)))
    b.replace_forward("ConcatTraining")
    return _training_gradient(b)


def _training_gradient(b: GradientBuilder) -> Results:
    inputs = b.dy[0], b.save(1)
    axis = b.ctx.axis(1)
    return tuple(b.many(len(b.x), "SplitTraining", *inputs, domain="com.microsoft", axis=axis))


def _alone(match: Match) -> Replacement | None:
    return Replacement(":Identity", ("x",), {})


concat = RewritingOp(
    "Concat",
    since=(1, 4, 11, 13),
    infer=_concat_infer,
    reference=_concat_reference,
    lower=_lower_concat,
    kernels=(piece_kernel,),
    cases=_concat_cases,
    gradient=_gradient,
    rewrites=(Rewrite(("Concat", "x"), _alone),),
)


def _training_infer(ctx: OpContext) -> Sequence[TensorType]:
    return (*_concat_infer(ctx), TensorType(INT64, (len(ctx.inputs),)))


def _training_known(ctx: OpContext) -> Sequence[np.ndarray | None]:
    return None, dims_array(_sizes(ctx))


def _training_reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    axis = attributes.get("axis", 1)
    return np.concatenate(inputs, axis), np.array([x.shape[axis] for x in inputs], np.int64)


def _training_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for case in _concat_cases(random):
        yield TestCase(case.name, case.inputs, case.attributes, case.constant, outputs=2, ulps=0)


concat_training = Op(
    "ConcatTraining",
    domain="com.microsoft",
    infer=_training_infer,
    shape_value=_training_known,
    reference=_training_reference,
    lower=_lower_concat,
    kernels=(piece_kernel,),
    cases=_training_cases,
    gradient=_training_gradient,
)

KERNELS = (piece_kernel,)
OPS = (concat, concat_training)
