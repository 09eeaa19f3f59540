"""GatherND, ScatterND and their gradients: slices by their places along several axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import product
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
from minbuild.ops.movement.strided_copy import MAX_RANK

gather_kernel = KernelFunction(
    "gather_nd", ("y:T=", "x:T", "indices:int64", "layout:extent"), types={"T": STORAGE_TYPES}
)
_PUT = ("y:T=", "x:T?", "indices:int64", "updates:T", "layout:extent")
scatter_kernel = KernelFunction("scatter_nd", _PUT, types={"T": STORAGE_TYPES})
scatter_reduce_kernel = KernelFunction(
    "scatter_nd_reduce", _PUT, params=("reduction:int",), types={"T": NUMBERS}
)


def _named(whole: Shape, indices: Shape, batch: int) -> tuple[int, Shape]:
    """The number of axes of the whole that a vector of indices names, and the shape of the part."""
    depth = indices[-1] if indices else None
    if not isinstance(depth, int) or batch + depth > len(whole) or batch >= len(indices):
        raise UnsupportedUse(f"indices {list(indices)} do not fit {list(whole)} with {batch} batch axes")
    return depth, (*indices[:-1], *whole[batch + depth :])


def _layout(whole: Shape, indices: Shape, batch: int) -> TensorType:
    depth, _ = _named(whole, indices, batch)
    end = batch + depth
    if depth + 2 > MAX_RANK:
        raise UnsupportedUse(f"indices of {depth} axes; {MAX_RANK - 2} are possible")
    return TensorType(ElementType.UINT8, (product(whole[:batch]), *whole[batch:end], product(whole[end:])))


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    batch = int(ctx.attribute("batch_dims", 0))
    return (TensorType(ctx.element(), _named(ctx.shape(), ctx.shape(1), batch)[1]),)


def _batches(whole: np.ndarray, indices: np.ndarray, batch: int) -> Iterable[tuple[Any, ...]]:
    """Place of every vector of indices, and of the slice that it names."""
    for at in np.ndindex(*indices.shape[:-1]):
        yield at, (*at[:batch], *(int(i) for i in indices[at]))


def _reference(attributes: Mapping[str, Any], x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    batch = attributes.get("batch_dims", 0)
    y = np.zeros((*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :]), x.dtype)
    for at, place in _batches(x, indices, batch):
        y[at] = x[place]
    return y


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    layout = _layout(ctx.shape(), ctx.shape(1), int(ctx.attribute("batch_dims", 0)))
    call = gather_kernel.call(
        ctx.result(), ctx.name(0), ctx.name(1), layout, types=(storage_type(ctx.element()),)
    )
    return (call,)


def _gradient(b: GradientBuilder) -> Results:
    """Every slice gets what came from its copies."""
    batch = int(b.ctx.attribute("batch_dims", 0))
    return b.microsoft("GatherNDGrad", b.x[0].shape(), b.x[1], b.dy[0], batch_dims=batch)


_SHAPES = (
    ((5,), (3, 1), 0),
    ((3, 4), (2, 2), 0),
    ((3, 4), (2, 1), 0),
    ((3, 4, 5), (2, 3, 2), 0),
    ((3, 4, 5), (3,), 0),
    ((2, 3, 4), (2, 1), 1),
    ((2, 3, 4, 2), (2, 5, 2), 1),
    ((2, 3, 4, 2), (2, 3, 1), 2),
    ((2, 3), (2, 0), 0),
)


def _variants(random: np.random.Generator) -> Iterable[tuple[str, np.ndarray, np.ndarray, int]]:
    for shape, of, batch in _SHAPES:
        named = shape[batch : batch + of[-1]]
        indices = np.stack([random.integers(-d, d, of[:-1]) for d in named], -1) if named else np.zeros(of)
        name = f"{list(shape)} by {list(of)}, {batch} batch axes"
        yield name, random.standard_normal(shape), indices.astype(np.int64), batch


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, x, indices, batch in _variants(random):
        constant = frozenset({1} if indices.size == 0 else ())
        yield TestCase(name, (x, indices), {"batch_dims": batch}, constant, ulps=0)
    indices = np.array([[0, 2], [-1, 1]])
    for dtype in (np.int8, np.bool_, np.float16, np.int64):
        x = random.integers(0, 2, (4, 3, 2)).astype(dtype)
        yield TestCase(f"of {np.dtype(dtype)}", (x, indices), ulps=0)
    yield TestCase("int32", (random.standard_normal((4, 3)), indices.astype(np.int32)), ulps=0)


gather_nd = Op(
    "GatherND",
    since=(11, 12, 13),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(gather_kernel,),
    decompose=with_int64(1, "GatherND"),
    decomposes_to=("Cast",),
    cases=_cases,
    gradient=_gradient,
)


# ------------------------------------------------------------------------------------------------ gradient


def _grad_reference(
    attributes: Mapping[str, Any], shape: np.ndarray, indices: np.ndarray, dy: np.ndarray
) -> np.ndarray:
    dx = np.zeros(tuple(int(d) for d in shape))
    for at, place in _batches(dx, indices, attributes.get("batch_dims", 0)):
        dx[place] += dy[at]
    return dx


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    layout = _layout(ctx.result_shape(), ctx.shape(1), int(ctx.attribute("batch_dims", 0)))
    call = call_scatter(
        ctx,
        (scatter_kernel, scatter_reduce_kernel),
        ("", ctx.name(1), ctx.name(2)),
        ScatterReduction.add,
        extents=(layout,),
        element=ctx.element(2),
    )
    return (call,)


def _grad_gradient(b: GradientBuilder) -> Results:
    batch = int(b.ctx.attribute("batch_dims", 0))
    return (None, None, b.add("GatherND", b.dy[0], b.x[1], batch_dims=batch))


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, x, indices, batch in _variants(random):
        constant = frozenset({0, 1} if indices.size == 0 else {0})
        dy = random.standard_normal(_reference({"batch_dims": batch}, x, indices).shape)
        yield TestCase(name, (np.array(x.shape), indices, dy), {"batch_dims": batch}, constant, ulps=16)


gather_nd_grad = Op(
    "GatherNDGrad",
    domain="com.microsoft",
    infer=in_shape_of(0, element=2),
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(scatter_reduce_kernel,),
    decompose=with_int64(1, "GatherNDGrad", "com.microsoft"),
    accumulates=frozenset({0}),
    cases=_grad_cases,
    gradient=_grad_gradient,
)


# ------------------------------------------------------------------------------------------------- scatter


def _scatter_infer(ctx: OpContext) -> Sequence[TensorType]:
    _, part = _named(ctx.shape(), ctx.shape(1), 0)
    if ctx.shape(2) != part:
        raise UnsupportedUse(f"updates {list(ctx.shape(2))} should have shape {list(part)}")
    scatter_reduction_of(ctx)
    return same_as(0)(ctx)


def _scatter_reference(
    attributes: Mapping[str, Any], x: np.ndarray, indices: np.ndarray, updates: np.ndarray
) -> np.ndarray:
    y, reduction = x.copy(), ScatterReduction[attributes.get("reduction", "none")]
    for at, place in _batches(y, indices, 0):
        reduce_into(reduction, y, place, updates[at])
    return y


def _lower_scatter(ctx: OpContext) -> Sequence[KernelCall]:
    call = call_scatter(
        ctx,
        (scatter_kernel, scatter_reduce_kernel),
        (ctx.name(0), ctx.name(1), ctx.name(2)),
        scatter_reduction_of(ctx),
        extents=(_layout(ctx.shape(), ctx.shape(1), 0),),
        element=ctx.element(),
    )
    return (call,)


def _scatter_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, indices in (
        ((5,), [[3], [0], [-1]]),
        ((4, 3), [[1, 2], [0, -1], [-1, 0]]),
        ((4, 3), [[3], [-4]]),
        ((4, 3, 2), [[[1, 0], [3, 2]], [[-4, 1], [2, 2]]]),
    ):
        at = np.array(indices)
        for reduction in ScatterReduction.__members__:
            for dtype in (np.float64, np.int16, np.uint64):
                sizes = (*at.shape[:-1], *shape[at.shape[-1] :])
                x, updates = ((random.standard_normal(s) * 5).astype(dtype) for s in (shape, sizes))
                name = f"{list(shape)} {indices} {reduction} {np.dtype(dtype)}"
                yield TestCase(name, (x, at, updates), {"reduction": reduction}, ulps=4)
    x, at = random.standard_normal(4), np.array([[1], [1], [2]])
    for reduction in ("add", "mul"):
        updates = random.standard_normal(3)
        yield TestCase(f"repeated {reduction}", (x, at, updates), {"reduction": reduction}, ulps=4)


scatter_nd = Op(
    "ScatterND",
    since=(11, 13, 16, 18),
    infer=_scatter_infer,
    reference=_scatter_reference,
    lower=_lower_scatter,
    kernels=(scatter_kernel, scatter_reduce_kernel),
    decompose=with_int64(1, "ScatterND"),
    in_place=((0, 0),),
    cases=_scatter_cases,
    gradient=scatter_gradient("GatherND", "ScatterND"),
)

KERNELS = (gather_kernel, scatter_kernel, scatter_reduce_kernel)
OPS = (gather_nd, gather_nd_grad, scatter_nd)
