"""CumSum and CumProd: sums and products of all elements up to each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import (
    NUMBERS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    same_as,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results

cumulative_kernel = KernelFunction(
    "cumulative",
    ("y:T=", "x:T", "groups:extent"),
    params=("product:int", "exclusive:int", "reverse:int"),
    types={"T": NUMBERS},
)


def _axis(ctx: OpContext) -> int:
    (axis,) = ctx.dims(1)
    if not isinstance(axis, int) or not -ctx.rank() <= axis < ctx.rank():
        raise UnsupportedUse(f"there is no axis {axis} of {ctx.rank()}")
    return axis % ctx.rank()


def _lower(products: bool) -> Callable[[OpContext], Sequence[KernelCall]]:
    def lower(ctx: OpContext) -> Sequence[KernelCall]:
        shape, axis = ctx.shape(), _axis(ctx)
        groups = product(shape[:axis]), shape[axis], product(shape[axis + 1 :])
        call = cumulative_kernel.call(
            ctx.result(),
            ctx.name(0),
            TensorType(ElementType.UINT8, groups),
            types=(ctx.element(),),
            params=(products, int(ctx.attribute("exclusive", 0)), int(ctx.attribute("reverse", 0))),
        )
        return (call,)

    return lower


def _reference(function: Any) -> Callable[..., np.ndarray]:
    def reference(attributes: Mapping[str, Any], x: np.ndarray, axis: np.ndarray) -> np.ndarray:
        along = int(axis.reshape(()).item())
        if attributes.get("reverse", 0):
            x = np.flip(x, along)
        if attributes.get("exclusive", 0):
            kept = np.take(x, range(x.shape[along] - 1), along)
            first = np.full_like(np.take(x, [0], along), function.identity)
            x = np.concatenate([first, kept], along)
        y = function.accumulate(x, along, dtype=x.dtype)
        return np.flip(y, along) if attributes.get("reverse", 0) else y

    return reference


def _sum_gradient(b: GradientBuilder) -> Results:
    """The same from the other end."""
    exclusive, reverse = (int(b.ctx.attribute(n, 0)) for n in ("exclusive", "reverse"))
    return b.add("CumSum", b.dy[0], b.x[1], exclusive=exclusive, reverse=1 - reverse)


def _product_gradient(b: GradientBuilder) -> Results:
    """Every later product, over the element's share in it. The elements must not be 0."""
    exclusive, reverse = (int(b.ctx.attribute(n, 0)) for n in ("exclusive", "reverse"))
    later = b.add("CumSum", b.dy[0] * b.y[0], b.x[1], exclusive=exclusive, reverse=1 - reverse)
    return later / b.x[0]


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axis in (((1,), 0), ((7,), -1), ((3, 5), 0), ((3, 5), 1), ((2, 4, 3), 1), ((2, 3, 2), -3)):
        for exclusive in (0, 1):
            for reverse in (0, 1):
                x = 0.5 + random.random(shape)
                attributes = {"exclusive": exclusive, "reverse": reverse}
                name = f"{list(shape)} axis {axis} {attributes}"
                yield TestCase(name, (x, np.array(axis)), attributes, frozenset({1}), ulps=4)
    for dtype in (np.int32, np.int8, np.uint64):
        numbers = random.integers(0, 3, (3, 4)).astype(dtype)
        yield TestCase(f"of {np.dtype(dtype)}", (numbers, np.array([1])), {}, frozenset({1}), ulps=0)


cum_sum = Op(
    "CumSum",
    since=(11, 14),
    infer=same_as(0),
    reference=_reference(np.add),
    lower=_lower(products=False),
    kernels=(cumulative_kernel,),
    cases=_cases,
    gradient=_sum_gradient,
)
cum_prod = Op(
    "CumProd",
    since=(26,),
    infer=same_as(0),
    reference=_reference(np.multiply),
    lower=_lower(products=True),
    kernels=(cumulative_kernel,),
    cases=_cases,
    gradient=_product_gradient,
)

KERNELS = (cumulative_kernel,)
OPS = (cum_sum, cum_prod)
