"""Shared by operators that read or write by index: how updates meet what is there, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from minbuild.ir import ElementType
from minbuild.ops.core.definition import (
    INT64,
    KernelCall,
    KernelFunction,
    OpContext,
    UnsupportedUse,
    storage_type,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value


class ScatterReduction(IntEnum):
    """The reduction of an update with the element it replaces, by the names of attribute `reduction`."""

    none = 0
    add = 1
    mul = 2
    min = 3
    max = 4


def scatter_reduction_of(ctx: OpContext) -> ScatterReduction:
    name = str(ctx.attribute("reduction", "none"))
    if name not in ScatterReduction.__members__:
        raise UnsupportedUse(
            f"reduction {name} is not known; there are {', '.join(ScatterReduction.__members__)}"
        )
    return ScatterReduction[name]


def reduce_into(reduction: ScatterReduction, whole: np.ndarray, place: tuple[Any, ...], update: Any) -> None:
    """`update` meets `whole[place]`. `whole` changes at `place` by `reduction`, which is replacement where that is
    none."""
    functions: dict[ScatterReduction, Callable[[Any, Any], Any]] = {
        ScatterReduction.none: lambda old, new: new,
        ScatterReduction.add: np.add,
        ScatterReduction.mul: np.multiply,
        ScatterReduction.min: np.minimum,
        ScatterReduction.max: np.maximum,
    }
    whole[place] = functions[reduction](whole[place], update)


def with_int64(i: int, op_type: str, domain: str = "") -> Callable[[GraphBuilder], Results]:
    """Kernels know indices of int64 only: others (input `i`) are converted. `op_type` of `domain` is the operator."""

    def body(b: GraphBuilder) -> Results:
        if b.ctx.element(i) == INT64:
            return None
        inputs = list(b.x)
        inputs[i] = inputs[i].cast(INT64)
        return b.add(op_type, *inputs, domain=domain, **b.ctx.attributes)

    return body


def call_scatter(
    ctx: OpContext,
    kernels: tuple[KernelFunction, KernelFunction],
    names: tuple[str, str, str],
    reduction: ScatterReduction,
    *,
    extents: tuple[Any, ...] = (),
    params: tuple[int, ...] = (),
    element: ElementType,
) -> KernelCall:
    """The kernel of two that only moves where nothing meets, or the one that computes. `names`: what there is before
    ("" for zeros), indices, updates. `ctx` is the operator's, `kernels` are those two, `reduction` says how updates
    meet; `extents` and `params` are the kernel's parameters, `element` is the type of the data."""
    plain, meets = kernels
    if reduction is ScatterReduction.none:
        return plain.call(ctx.result(), *names, *extents, types=(storage_type(element),), params=params)
    return meets.call(
        ctx.result(),
        *names,
        *extents,
        types=(element,),
        params=(*params, reduction),
        accumulate=ctx.accumulate,
    )


def scatter_gradient(take: str, put: str) -> Callable[[GradientBuilder], Results]:
    """Of `y = put(x, indices, updates)`: each element of y is one of x or updates, their sum, product, least or
    largest, whose gradient is divided among all that are equal to it. `take` reads where `put` writes. Products must
    not contain zeros."""

    def gradient(b: GradientBuilder) -> Results:
        reduction, (x, indices, updates), dy, y = scatter_reduction_of(b.ctx), b.x, b.dy[0], b.y[0]
        attributes = {k: v for k, v in b.ctx.attributes.items() if k == "axis"}
        element = b.ctx.element()

        def taken(value: Value) -> Value:
            return b.add(take, value, indices, **attributes)

        def filled(like: Value, number: int) -> Value:
            return b.add("ConstantOfShape", like.shape(), value=np.full(1, number, element.dtype))

        if reduction is ScatterReduction.none:
            return (b.add(put, dy, indices, filled(updates, 0), **attributes), None, taken(dy))
        if reduction is ScatterReduction.add:
            return (b.add("Identity", dy), None, taken(dy))
        if reduction is ScatterReduction.mul:
            factors = b.add(put, filled(x, 1), indices, updates, reduction="mul", **attributes)
            shares = taken(dy * y) / updates
            return (dy * factors, None, shares)
        kept, put_there = x.equal(y).cast(element), updates.equal(taken(y)).cast(element)
        share = dy / b.add(put, kept, indices, put_there, reduction="add", **attributes)
        return (share * kept, None, taken(share) * put_there)

    return gradient


OPS: tuple[()] = ()
