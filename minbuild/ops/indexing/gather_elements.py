"""GatherElements, ScatterElements and their gradients: single elements by their place along one axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import (
    NUMBERS,
    STORAGE_TYPES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    in_shape_of,
    same_as,
    storage_type,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results
from minbuild.ops.indexing.scatter_gather import (
    ScatterReduction,
    call_scatter,
    reduce_into,
    scatter_gradient,
    scatter_reduction_of,
    with_int64,
)

gather_kernel = KernelFunction(
    "gather_elements", ("y:T=", "x:T", "indices:int64"), params=("axis:int",), types={"T": STORAGE_TYPES}
)
_PUT = ("y:T=", "x:T?", "indices:int64", "updates:T")
scatter_kernel = KernelFunction("scatter_elements", _PUT, params=("axis:int",), types={"T": STORAGE_TYPES})
scatter_reduce_kernel = KernelFunction(
    "scatter_elements_reduce", _PUT, params=("axis:int", "reduction:int"), types={"T": NUMBERS}
)


def _checked(ctx: OpContext, whole: int, indices: int) -> None:
    """As many axes on both sides, and one of them named."""
    rank, axis = ctx.rank(whole), ctx.axis(of=whole)
    if ctx.rank(indices) != rank or not 0 <= axis < rank:
        raise UnsupportedUse(f"indices {list(ctx.shape(indices))} do not fit {list(ctx.shape(whole))}")


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    _checked(ctx, 0, 1)
    return (TensorType(ctx.element(), ctx.shape(1)),)


def _places(indices: np.ndarray, axis: int) -> tuple[Any, ...]:
    """The numpy index of the same elements."""
    grid: list[Any] = list(np.indices(indices.shape))
    grid[axis] = indices
    return tuple(grid)


def _reference(attributes: Mapping[str, Any], x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.asarray(x[_places(indices.astype(np.int64), attributes.get("axis", 0))])


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    call = gather_kernel.call(
        ctx.result(),
        ctx.name(0),
        ctx.name(1),
        types=(storage_type(ctx.element()),),
        params=(ctx.axis(),),
    )
    return (call,)


def _gradient(b: GradientBuilder) -> Results:
    """Every element gets what came from its copies."""
    axis = int(b.ctx.attribute("axis", 0))
    return b.microsoft("GatherElementsGrad", b.dy[0], b.x[0].shape(), b.x[1], axis=axis)


_SHAPES = (
    ((5,), (3,), 0),
    ((5,), (9,), 0),
    ((3, 4), (3, 2), 1),
    ((3, 4), (2, 3), 0),
    ((3, 4), (5, 4), -2),
    ((2, 3, 4), (1, 3, 2), 2),
    ((2, 3, 4), (2, 5, 3), 1),
    ((2, 3, 4), (4, 1, 4), -3),
    ((2, 3, 2, 2), (2, 3, 1, 2), 2),
)


def _indices(random: np.random.Generator, size: int, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Places without repetition along the axis where that is possible, some counted from the end."""
    count = shape[axis]
    if count > size:
        return random.integers(-size, size, shape)
    order = np.argsort(random.random((*shape[:axis], size, *shape[axis:][1:])), axis)
    chosen = np.take(order, range(count), axis)
    return np.where(random.random(shape) < 0.3, chosen - size, chosen)


def _variants(random: np.random.Generator) -> Iterable[tuple[str, np.ndarray, np.ndarray, int]]:
    for shape, part, axis in _SHAPES:
        indices = _indices(random, shape[axis], part, axis % len(shape))
        name = f"{list(shape)} {list(part)} axis {axis}"
        yield name, random.standard_normal(shape), indices, axis


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, x, indices, axis in _variants(random):
        for dtype in (np.int64, np.int32):
            yield TestCase(f"{name} {np.dtype(dtype)}", (x, indices.astype(dtype)), {"axis": axis}, ulps=0)
    bits = random.integers(0, 2, (4, 3))
    for other in (np.int8, np.bool_, np.float16, np.uint32):
        inputs = (bits.astype(other), np.array([[0, -1, 2]]))
        yield TestCase(f"of {np.dtype(other)}", inputs, {"axis": 0}, ulps=0)


gather_elements = Op(
    "GatherElements",
    since=(11, 13),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(gather_kernel,),
    decompose=with_int64(1, "GatherElements"),
    decomposes_to=("Cast",),
    cases=_cases,
    gradient=_gradient,
)


# ------------------------------------------------------------------------------------------------ gradient


def _grad_reference(
    attributes: Mapping[str, Any], dy: np.ndarray, shape: np.ndarray, indices: np.ndarray
) -> np.ndarray:
    dx = np.zeros(tuple(int(d) for d in shape))
    np.add.at(dx, _places(indices.astype(np.int64), attributes.get("axis", 0)), dy)
    return dx


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    axis = int(ctx.attribute("axis", 0))
    call = call_scatter(
        ctx,
        (scatter_kernel, scatter_reduce_kernel),
        ("", ctx.name(2), ctx.name(0)),
        ScatterReduction.add,
        params=(axis + len(ctx.result_shape()) if axis < 0 else axis,),
        element=ctx.element(),
    )
    return (call,)


def _grad_gradient(b: GradientBuilder) -> Results:
    return b.add("GatherElements", b.dy[0], b.x[2], axis=int(b.ctx.attribute("axis", 0)))


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, x, indices, axis in _variants(random):
        for dtype in (np.int64, np.int32):
            dy = random.standard_normal(indices.shape)
            inputs = (dy, np.array(x.shape), indices.astype(dtype))
            yield TestCase(f"{name} {np.dtype(dtype)}", inputs, {"axis": axis}, frozenset({1}), ulps=16)


gather_elements_grad = Op(
    "GatherElementsGrad",
    domain="com.microsoft",
    infer=in_shape_of(1),
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(scatter_reduce_kernel,),
    decompose=with_int64(2, "GatherElementsGrad", "com.microsoft"),
    decomposes_to=("Cast",),
    accumulates=frozenset({0}),
    cases=_grad_cases,
    gradient=_grad_gradient,
)


# ------------------------------------------------------------------------------------------------- scatter


def _scatter_infer(ctx: OpContext) -> Sequence[TensorType]:
    _checked(ctx, 0, 1)
    if ctx.shape(1) != ctx.shape(2):
        raise UnsupportedUse(f"indices {list(ctx.shape(1))} and updates {list(ctx.shape(2))} differ in shape")
    scatter_reduction_of(ctx)
    return same_as(0)(ctx)


def _scatter_reference(
    attributes: Mapping[str, Any], x: np.ndarray, indices: np.ndarray, updates: np.ndarray
) -> np.ndarray:
    y = x.copy()
    axis, reduction = attributes.get("axis", 0), ScatterReduction[attributes.get("reduction", "none")]
    for at in np.ndindex(*indices.shape):
        place = list(at)
        place[axis] = int(indices[at])
        reduce_into(reduction, y, tuple(place), updates[at])
    return y


def _lower_scatter(ctx: OpContext) -> Sequence[KernelCall]:
    call = call_scatter(
        ctx,
        (scatter_kernel, scatter_reduce_kernel),
        (ctx.name(0), ctx.name(1), ctx.name(2)),
        scatter_reduction_of(ctx),
        params=(ctx.axis(),),
        element=ctx.element(),
    )
    return (call,)


def _scatter_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, x, indices, axis in _variants(random):
        updates = random.standard_normal(indices.shape)
        for reduction in ScatterReduction.__members__:
            repeated = indices.shape[axis] > x.shape[axis]
            if repeated and reduction == "none":
                continue
            attributes = {"axis": axis, "reduction": reduction}
            yield TestCase(f"{name} {reduction}", (x, indices, updates), attributes, ulps=8)
        yield TestCase(f"{name} int32", (x, indices.astype(np.int32), updates), attributes, ulps=0)
    for dtype in (np.int8, np.uint16, np.int64, np.uint64):
        old, new = (random.integers(0, 9, (4, 3)).astype(dtype) for _ in range(2))
        for reduction in ScatterReduction.__members__:
            attributes = {"axis": 1, "reduction": reduction}
            indices = _indices(random, 3, (4, 3), 1)
            yield TestCase(f"{np.dtype(dtype)} {reduction}", (old, indices, new), attributes, ulps=0)


scatter_elements = Op(
    "ScatterElements",
    since=(11, 13, 16, 18),
    infer=_scatter_infer,
    reference=_scatter_reference,
    lower=_lower_scatter,
    kernels=(scatter_kernel, scatter_reduce_kernel),
    decompose=with_int64(1, "ScatterElements"),
    decomposes_to=("Cast",),
    in_place=((0, 0),),
    cases=_scatter_cases,
    gradient=scatter_gradient("GatherElements", "ScatterElements"),
)
scatter = replace(
    scatter_elements,
    name="Scatter",
    since=(9, 11),
    decompose=with_int64(1, "Scatter"),
    decomposes_to=("Cast",),
)

KERNELS = (gather_kernel, scatter_kernel, scatter_reduce_kernel)
OPS = (gather_elements, gather_elements_grad, scatter_elements, scatter)
