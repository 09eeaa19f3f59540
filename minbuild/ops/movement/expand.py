"""Expand, Scale, and both in one: the gradients of means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Dim
from minbuild.ops.arithmetic import arithmetic as _arithmetic
from minbuild.ops.core.broadcasting import AXES, WALK, broadcast_loop_of, call_binary
from minbuild.ops.core.definition import (
    BOOL,
    FLOATS,
    INDICES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    broadcast_shapes,
    same_as,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.pattern import Match, Replacement, Rewrite, RewritingOp, identity
from minbuild.ops.core.value import Results
from minbuild.ops.movement import strided_copy as _strided_copy
from minbuild.ops.movement.strided_copy import Along, Axis

expand_kernel = KernelFunction(
    "expand",
    ("y:T=", "x:T", "size:extent?", WALK),
    params=(
        *AXES,
        "factor_0:int",
        "factor_1:int",
        "use_size:int",
    ),  # the factor's bits; 1: times the size, -1: divided by it
    types={"T": (*FLOATS, *INDICES, BOOL)},
    features={
        "broadcast": "axes that differ and agree more than once in turn",
        "extent": "multiplies or divides by a size that inputs choose",
    },
)


def factor_words(factor: float, element: ElementType) -> tuple[int, int]:
    data = np.array(factor, element.dtype).tobytes().ljust(8, b"\0")
    low, high = np.frombuffer(data, np.int32).tolist()
    return low, high


def _call(ctx: OpContext, factor: float = 1, size: TensorType | None = None, use_size: int = 0) -> KernelCall:
    loop = broadcast_loop_of(ctx.result_shape(), ctx.shape(0), ())
    asked = {"broadcast": loop.axes_count > 2, "extent": size is not None}
    return expand_kernel.call(
        ctx.result(),
        ctx.name(0),
        size,
        loop.extent,
        types=(ctx.element(),),
        params=(*loop.axes, *factor_words(factor, ctx.element()), use_size),
        features=tuple(name for name, used in asked.items() if used),
    )


def call_expanded(
    result: str | TensorType,
    source: str | TensorType,
    rows: Dim,
    columns: Dim,
    element: ElementType,
    factor: float,
) -> KernelCall:
    """`result`, `rows` of `columns` elements of type `element`, with each element of `source`, times `factor`, in all
    of its row."""
    return expand_kernel.call(
        *(result, source, None, TensorType(element, (rows, columns))),
        types=(element,),
        params=(1, 0, *factor_words(factor, element), 0),
    )


def call_copy(ctx: OpContext) -> KernelCall:
    """Output 0 with the elements of input 0."""
    return _call(ctx)


# ---------------------------------------------------------------------------------------------------- Expand


def _expand_infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ctx.element(), broadcast_shapes(ctx.shape(), ctx.dims(1))),)


def _expand_reference(attributes: Mapping[str, Any], x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(d) for d in shape.tolist())))


def _lower_expand(ctx: OpContext) -> Sequence[KernelCall]:
    if ctx.element() in expand_kernel.types["T"]:
        return (_call(ctx),)
    return (_strided_copy.call_move(ctx.result(), ctx.name(0), ctx.element(), _repetition(ctx)),)


def _repetition(ctx: OpContext) -> _strided_copy.Movement:
    """Elements that repeat, whatever their type."""
    shape = ctx.result_shape()
    own = (1,) * (len(shape) - ctx.rank()) + tuple(ctx.shape())
    moves = [Axis(d, Along(d), None if o == 1 else Along(d)) for d, o in zip(shape, own, strict=True)]
    return _strided_copy.straight(moves)


def _expand_gradient(b: GradientBuilder) -> Results:
    return b.summed_to(b.dy[0], _expand_infer(b.ctx)[0].shape, 0)


_SHAPES = (
    ((), (3, 4)),
    ((1,), (33,)),
    ((5,), (5,)),
    ((5,), (3, 5)),
    ((3, 1), (3, 4)),
    ((3, 1), (2, 1, 6)),
    ((2, 3, 1, 1), (2, 3, 4, 5)),
    ((2, 1, 4), (1, 3, 1)),
)


def _expand_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, to in _SHAPES:
        x = random.standard_normal(shape)
        dims = np.array(to, np.int64)
        for each in (x, (x * 9).astype(np.int64), (x * 9).astype(np.int32), (x * 9).astype(np.int8), x > 0):
            yield TestCase(
                f"{each.dtype} {list(shape)} to {list(to)}", (each, dims), constant=frozenset({1}), ulps=0
            )


# ----------------------------------------------------------------------------------------------------- Scale


def _call_scale(ctx: OpContext, down: bool) -> KernelCall:
    """By a number known now, by a size known when the inputs are, or by a tensor of the same type."""
    content = ctx.content(1)
    if content is not None and content.size != 1:
        raise UnsupportedUse("it scales by more than one number")
    if content is None:
        kernel = _arithmetic.div_kernel if down else _arithmetic.mul_kernel
        return call_binary(kernel, ctx)
    if content.dtype == object:
        return _call(ctx, size=TensorType(ctx.element(), tuple(content.ravel())), use_size=-1 if down else 1)
    if down and ctx.element() not in FLOATS:
        raise UnsupportedUse("it divides whole numbers")
    number = content.astype(ctx.element().dtype).ravel()[0]
    with np.errstate(divide="ignore"):  # the mean of nothing
        return _call(ctx, factor=1 / number if down else number)


def _scale_body(b: GraphBuilder) -> Results:
    """A scale that only the device knows takes the type of what it scales."""
    element = b.ctx.element()
    if b.ctx.content(1) is not None or b.ctx.element(1) is element:
        return None
    scale, down = b.x[1].cast(element), int(b.ctx.attribute("scale_down", 0))
    return b.microsoft("Scale", b.x[0], scale, scale_down=down)


def _lower_scale(ctx: OpContext) -> Sequence[KernelCall]:
    return (_call_scale(ctx, bool(ctx.attribute("scale_down", 0))),)


def _scale_reference(attributes: Mapping[str, Any], x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    if x.dtype == object or scale.dtype == object:
        raise TypeError("scaling by a free dimension is the device's")
    factor = scale.astype(np.float64).reshape(())
    return x / factor if attributes.get("scale_down", 0) else x * factor


def _scale_gradient(b: GradientBuilder) -> Results:
    down = int(b.ctx.attribute("scale_down", 0))
    return b.microsoft("Scale", b.dy[0], b.x[1], scale_down=down)


def _scale_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (1,), (9,), (3, 5)):
        x = random.standard_normal(shape)
        for scale in (np.array(7, np.int64), np.array([2.5]), np.array([3], np.int32)):
            for down in (0, 1):
                name = f"{list(shape)} {scale.dtype} down {down}"
                yield TestCase(name, (x, scale), {"scale_down": down}, frozenset({1}), ulps=2)
        inputs = (x, np.array([1.5]))
        yield TestCase(f"{list(shape)} by a tensor", inputs, {"scale_down": 1}, ulps=2, smooth=False)
        inputs = (x, np.array([4], np.int32))
        yield TestCase(f"{list(shape)} by an integer tensor", inputs, {"scale_down": 1}, ulps=2)


# ---------------------------------------------------------------------------------------------- ScaledExpand


def _scaled_infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ctx.element(), broadcast_shapes(ctx.shape(), ctx.dims(2))),)


def _scaled_reference(
    attributes: Mapping[str, Any], x: np.ndarray, scale: np.ndarray, shape: np.ndarray
) -> np.ndarray:
    return _expand_reference({}, _scale_reference(attributes, x, scale), shape)


def _scaled_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, to in _SHAPES:
        inputs = (random.standard_normal(shape), np.array([6.0]), np.array(to, np.int64))
        yield TestCase(f"{list(shape)} to {list(to)}", inputs, {"scale_down": 1}, frozenset({1, 2}), ulps=2)


def _scale_then_expand(match: Match) -> Replacement | None:
    return Replacement(
        "minbuild:ScaledExpand", ("x", "scale", "shape"), match.attributes("com.microsoft:Scale")
    )


expand = RewritingOp(
    "Expand",
    since=(8, 13),
    infer=_expand_infer,
    reference=_expand_reference,
    lower=_lower_expand,
    kernels=(expand_kernel, _strided_copy.move_kernel),
    cases=_expand_cases,
    gradient=_expand_gradient,
    rewrites=(Rewrite(("Expand", "x", "shape"), identity),),
)
scale = Op(
    "Scale",
    domain="com.microsoft",
    infer=same_as(0),
    reference=_scale_reference,
    lower=_lower_scale,
    kernels=(_arithmetic.div_kernel, expand_kernel, _arithmetic.mul_kernel),
    decompose=_scale_body,
    decomposes_to=("Cast",),
    in_place=((0, 0),),
    cases=_scale_cases,
    gradient=_scale_gradient,
)
scaled_expand = RewritingOp(
    "ScaledExpand",
    domain="minbuild",
    infer=_scaled_infer,
    reference=_scaled_reference,
    lower=_lower_scale,
    kernels=(_arithmetic.div_kernel, expand_kernel, _arithmetic.mul_kernel),
    cases=_scaled_cases,
    rewrites=(Rewrite(("Expand", ("com.microsoft:Scale", "x", "scale"), "shape"), _scale_then_expand),),
)

KERNELS = (expand_kernel,)
OPS = (expand, scale, scaled_expand)
