"""TopK: the largest or smallest elements along an axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import (
    INT64,
    NUMBERS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results

top_k_kernel = KernelFunction(
    "top_k",
    ("values:T=?", "indices:int64=?", "x:T", "groups:extent", "heap:scratch"),
    params=("largest:int",),
    types={"T": NUMBERS},
)


def _count(ctx: OpContext) -> Dim:
    """The number of elements: input 1, or the attribute of opset 1."""
    count = ctx.dims(1)[0] if ctx.has(1) else ctx.attribute("k")
    size = ctx.shape()[ctx.axis(-1)]
    if count is None or (isinstance(count, int) and isinstance(size, int) and not 0 <= count <= size):
        raise UnsupportedUse(f"it wants {count} of {size} elements")
    return count


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    shape, axis = ctx.shape(), ctx.axis(-1)
    found = (*shape[:axis], _count(ctx), *shape[axis + 1 :])
    return TensorType(ctx.element(), found), TensorType(INT64, found)


def _reference(
    attributes: Mapping[str, Any], x: np.ndarray, k: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    axis, count = attributes.get("axis", -1), int(attributes["k"] if k is None else k.reshape(()).item())
    if attributes.get("largest", 1):
        flipped = np.argsort(np.flip(x, axis), axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(flipped, axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    indices = np.take(order, range(count), axis)
    return np.take_along_axis(x, indices, axis), indices


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    shape, axis, count = ctx.shape(), ctx.axis(-1), _count(ctx)
    groups = (product(shape[:axis]), shape[axis], product(shape[axis + 1 :]), count)
    call = top_k_kernel.call(
        ctx.result(0),
        ctx.result(1),
        ctx.name(0),
        TensorType(ElementType.UINT8, groups),
        TensorType(ElementType.UINT8, (count * 4,)),
        types=(ctx.element(),),
        params=(int(ctx.attribute("largest", 1)),),
    )
    return (call,)


def _gradient(b: GradientBuilder) -> Results:
    """Elements that were taken pass the gradient on; indices have none."""
    if not b.dy[0]:
        return None
    axis = b.ctx.axis(-1)
    return b.microsoft("GatherElementsGrad", b.dy[0], b.x[0].shape(), b.save(1), axis=axis)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axis, count in (
        ((1,), 0, 1),
        ((9,), 0, 9),
        ((3, 40), -1, 5),
        ((3, 7), 0, 2),
        ((2, 6, 5), 1, 3),
        ((4, 3), 1, 0),
    ):
        for largest in (0, 1):
            x = random.standard_normal(shape)
            attributes = {"axis": axis, "largest": largest}
            name, k = f"{list(shape)} {count} {attributes}", np.array([count])
            yield TestCase(name, (x, k), attributes, frozenset({1}), outputs=2, ulps=0)
            ties = (x.round(), k)
            yield TestCase(f"{name} ties", ties, attributes, frozenset({1}), outputs=2, ulps=0, smooth=False)
    x, k = random.standard_normal((4, 6)), np.array([2])
    yield TestCase(
        "indices only", inputs=(x, k), constant=frozenset({1}), outputs=2, absent=frozenset({0}), ulps=0
    )
    yield TestCase(
        "values only",
        inputs=(x, k),
        attributes={"sorted": 0},
        constant=frozenset({1}),
        outputs=2,
        absent=frozenset({1}),
        ulps=0,
    )
    special = x.copy()
    special[1, 2:5] = np.nan, np.inf, -np.inf
    for largest in (0, 1):
        yield TestCase(
            f"not finite {largest}", (special, k), {"largest": largest}, frozenset({1}), outputs=2, ulps=0
        )
    for dtype in (np.int8, np.uint8, np.int64, np.uint64):
        numbers = random.integers(0, 100, (4, 6)).astype(dtype)
        yield TestCase(f"of {np.dtype(dtype)}", (numbers, k), {}, frozenset({1}), outputs=2, ulps=0)


top_k = Op(
    "TopK",
    since=(1, 10, 11, 24),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(top_k_kernel,),
    cases=_cases,
    gradient=_gradient,
)

KERNELS = (top_k_kernel,)
OPS = (top_k,)
