"""ConstantOfShape: one value in every element, and how other operators fill their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    UnsupportedUse,
    storage_type,
)

fill_kernel = KernelFunction(
    "fill", ("y:T=", "value:T?"), params=("value_0:int", "value_1:int"), types={"T": STORAGE_TYPES}
)
SMALL = 4096  # elements up to which a constant stands in the plan: shape arithmetic needs its numbers


def element_words(value: float | np.generic, element: ElementType) -> tuple[int, int]:
    """An element's bytes as two int32 parameters."""
    data = np.asarray(value).astype(element.dtype).tobytes().ljust(8, b"\0")
    low, high = np.frombuffer(data, np.int32).tolist()
    return low, high


def call_fill(
    y: str, element: ElementType, value: float | np.generic = 0, tensor: str | None = None
) -> KernelCall:
    """`y` full of a number known now, or of the only element of a tensor. `value` is that number, of type `element`;
    `tensor`, the name of that tensor, takes its place."""
    return fill_kernel.call(y, tensor, types=(storage_type(element),), params=element_words(value, element))


def _value(attributes: Mapping[str, Any]) -> np.ndarray:
    return np.asarray(attributes.get("value", np.zeros(1, np.float32)))


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    element = ElementType.of(_value(ctx.attributes).dtype)
    if element is None:
        raise UnsupportedUse(f"values of type {_value(ctx.attributes).dtype} are not supported")
    return (TensorType(element, ctx.dims(0)),)


def _known(ctx: OpContext) -> Sequence[np.ndarray | None]:
    dims = ctx.dims(0)
    count = product(dims)
    known = [d for d in dims if isinstance(d, int)]
    if len(known) < len(dims) or not isinstance(count, int) or count > SMALL:
        return (None,)
    return (np.full(known, _value(ctx.attributes).ravel()[0]),)


def _reference(attributes: Mapping[str, Any], shape: np.ndarray) -> np.ndarray:
    return np.full([int(d) for d in shape.tolist()], _value(attributes).ravel()[0])


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    value = _value(ctx.attributes)
    result = ctx.results[0]
    assert result is not None
    return (call_fill(ctx.result(), result.element, value.ravel()[0]),)


constant_of_shape = Op(
    "ConstantOfShape",
    since=(9, 20, 21, 23, 24, 25),
    infer=_infer,
    shape_value=_known,
    reference=_reference,
    folds=False,
    lower=_lower,
    kernels=(fill_kernel,),
)

KERNELS = (fill_kernel,)
OPS = (constant_of_shape,)
