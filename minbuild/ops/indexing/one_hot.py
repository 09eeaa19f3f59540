"""OneHot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import (
    STORAGE_TYPES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    storage_type,
)
from minbuild.ops.indexing.scatter_gather import with_int64

one_hot_kernel = KernelFunction(
    "one_hot", ("y:T=", "indices:int64", "values:T", "layout:extent"), types={"T": STORAGE_TYPES}
)


def _new_axis(ctx: OpContext) -> int:
    axis = int(ctx.attribute("axis", -1))
    return axis + ctx.rank() + 1 if axis < 0 else axis


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    shape, axis, (depth,) = ctx.shape(), _new_axis(ctx), ctx.dims(1)
    whole = depth if not isinstance(depth, float) else int(depth)
    return (TensorType(ctx.element(2), (*shape[:axis], whole, *shape[axis:])),)


def _reference(
    attributes: Mapping[str, Any], indices: np.ndarray, depth: np.ndarray, values: np.ndarray
) -> np.ndarray:
    size, axis = int(depth.reshape(()).item()), attributes.get("axis", -1)
    whole = indices.astype(np.int64)
    hot = np.eye(size, dtype=bool)[np.where((whole >= -size) & (whole < size), whole, 0)]
    hot &= ((whole >= -size) & (whole < size))[..., None]
    return np.moveaxis(np.where(hot, values[1], values[0]), -1, axis).astype(values.dtype)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    shape, axis = ctx.result_shape(), _new_axis(ctx)
    layout = product(shape[:axis]), shape[axis], product(shape[axis + 1 :])
    call = one_hot_kernel.call(
        ctx.result(),
        ctx.name(0),
        ctx.name(2),
        TensorType(ElementType.UINT8, layout),
        types=(storage_type(ctx.element(2)),),
    )
    return (call,)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axis in (((), -1), ((4,), -1), ((4,), 0), ((2, 3), 1), ((2, 3), -2)):
        for dtype in (np.int64, np.int32, np.float64):
            indices = np.asarray(random.integers(-7, 7, shape)).astype(dtype)
            for values in (np.array([0.5, 2.0]), np.array([3, 4], np.int8)):
                name = f"{list(shape)} axis {axis} {np.dtype(dtype)} {values.dtype}"
                inputs = (indices, np.array([5]), values)
                yield TestCase(name, inputs, {"axis": axis}, frozenset({1}), ulps=0)


one_hot = Op(
    "OneHot",
    since=(9, 11, 28),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(one_hot_kernel,),
    decompose=with_int64(0, "OneHot"),
    decomposes_to=("Cast",),
    cases=_cases,
)

KERNELS = (one_hot_kernel,)
OPS = (one_hot,)
