"""Gather: slices of a tensor by index, and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import (
    FLOATS,
    INDICES,
    STORAGE_TYPES,
    EqualLowering,
    KernelCall,
    KernelFunction,
    KernelRule,
    Op,
    OpContext,
    TestCase,
    View,
    in_shape_of,
    storage_type,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results

gather_kernel = KernelFunction(
    "gather", ("y:T=", "x:T", "indices:I", "groups:extent"), types={"T": STORAGE_TYPES, "I": INDICES}
)
grad_kernel = KernelFunction(
    "gather_grad", ("dx:T=", "dy:T", "indices:I", "groups:extent"), types={"T": FLOATS, "I": INDICES}
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    shape, axis = ctx.shape(0), ctx.axis()
    return (TensorType(ctx.element(0), shape[:axis] + ctx.shape(1) + shape[axis + 1 :]),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.take(x, indices.astype(np.int64), axis=attributes.get("axis", 0))


def _groups(ctx: OpContext, shape: Shape) -> TensorType:
    """The whole tensor as [before the axis, axis, behind it]."""
    axis = int(ctx.attribute("axis", 0))
    axis += len(shape) if axis < 0 else 0
    return TensorType(ElementType.UINT8, (product(shape[:axis]), shape[axis], product(shape[axis + 1 :])))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    call = gather_kernel.call(
        ctx.result(),
        ctx.name(0),
        ctx.name(1),
        _groups(ctx, ctx.shape(0)),
        types=(storage_type(ctx.element(0)), ctx.element(1)),
    )
    return (call,)


def _variants(
    random: np.random.Generator,
) -> Iterable[tuple[str, tuple[int, ...], np.ndarray, Mapping[str, int]]]:
    for shape, axis, count in (
        ((5,), 0, ()),
        ((5, 3), 0, (4,)),
        ((7, 33), 0, (2, 6)),
        ((3, 5, 4), 1, ()),
        ((2, 6, 5), -2, (3, 2)),
        ((4, 9), 1, (12,)),
        ((2, 3, 2, 1), 2, (1,)),
        ((3, 2), 0, (0,)),
    ):
        for dtype in (np.int64, np.int32):
            size = shape[axis]
            indices = random.integers(-size, size, count).astype(dtype)
            yield f"{list(shape)} axis {axis} {np.dtype(dtype)}", shape, np.asarray(indices), {"axis": axis}


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, shape, indices, attributes in _variants(random):
        constant = frozenset({1} if indices.size == 0 else ())
        yield TestCase(name, (random.standard_normal(shape), indices), attributes, constant, ulps=0)
    numbers = random.integers(-9, 9, (6, 4))
    for dtype in (np.int64, np.int32, np.bool_, np.int8, np.float16):
        yield TestCase(f"of {np.dtype(dtype)}", (numbers.astype(dtype), np.array([[0, 5], [3, -1]])), ulps=0)


def _gradient(b: GradientBuilder) -> Results:
    """Every element gets what came from its copies."""
    axis = b.ctx.axis()
    return b.microsoft("GatherGrad", b.x[0].shape(), b.x[1], b.dy[0], axis=axis)


gather = Op(
    "Gather",
    since=(1, 11, 13),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(gather_kernel,),
    cases=_cases,
    gradient=_gradient,
)
shrunken_gather = replace(gather, name="ShrunkenGather", domain="com.microsoft", since=(1,))


def _grad_reference(
    attributes: Mapping[str, Any], shape: np.ndarray, indices: np.ndarray, dy: np.ndarray
) -> np.ndarray:
    dx = np.zeros(tuple(int(d) for d in shape))
    axis = attributes.get("axis", 0) % dx.ndim
    slices = np.moveaxis(dy.reshape(dx.shape[:axis] + (-1,) + dx.shape[axis + 1 :]), axis, 0)
    np.add.at(np.moveaxis(dx, axis, 0), indices.ravel(), slices)
    return dx


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    call = grad_kernel.call(
        ctx.result(),
        ctx.name(2),
        ctx.name(1),
        _groups(ctx, ctx.result_shape()),
        types=(ctx.element(2), ctx.element(1)),
        accumulate=ctx.accumulate,
    )
    return (call,)


def _grad_gradient(b: GradientBuilder) -> Results:
    return (None, None, b.add("Gather", b.dy[0], b.x[1], axis=int(b.ctx.attribute("axis", 0))))


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, shape, indices, attributes in _variants(random):
        if indices.size == 0:
            continue
        dy = random.standard_normal(np.take(np.zeros(shape), indices, axis=attributes["axis"]).shape)
        yield TestCase(name, (np.array(shape), indices, dy), attributes, frozenset({0}), ulps=16)


gather_grad = Op(
    "GatherGrad",
    domain="com.microsoft",
    infer=in_shape_of(0, element=2),
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(grad_kernel,),
    accumulates=frozenset({0}),
    cases=_grad_cases,
    gradient=_grad_gradient,
)

# --------------------------------------------------------------------------------------------- equal lowerings


def _in_pieces(piece: ElementType) -> KernelRule:
    """Slices of wider elements as slices of as many times more pieces."""

    def rule(call: KernelCall, shape: Callable[[str], Shape]) -> Sequence[KernelCall] | None:
        element, index = call.types
        if element.size <= piece.size:
            return None
        times = element.size // piece.size
        y, x, indices, groups = call.args
        assert isinstance(y, str) and isinstance(x, str) and isinstance(groups, TensorType)
        before, axis, behind = groups.shape or ()
        return (
            gather_kernel.call(
                *(View(name, TensorType(piece, (product(shape(name)) * times,))) for name in (y, x)),
                indices,
                TensorType(ElementType.UINT8, (before, axis, behind * times)),
                types=(piece, index),
            ),
        )

    return rule


KERNELS = (gather_kernel, grad_kernel)
OPS = (gather, shrunken_gather, gather_grad)
EQUALS = tuple(
    EqualLowering(
        f"gather-by-{pieces}",
        f"Gather of wider elements by {pieces}",
        {"gather": _in_pieces(piece)},
        (gather_kernel,),
        time=2.3,  # of single elements of eight bytes; rows take as long as before
    )
    for pieces, piece in (("words", ElementType.UINT32), ("bytes", ElementType.UINT8))
)
