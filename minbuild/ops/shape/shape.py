"""Operators whose results are shapes or constants: folded when the trainer is built, absent from the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import INT64, Op, OpContext, UnsupportedUse


def dims_array(dims: Sequence[Dim], shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An object array of dimensions, as shape arithmetic passes them on."""
    array = np.empty(len(dims), object)
    array[:] = list(dims)
    return array if shape is None else array.reshape(shape)


def _window(site_rank: int, attributes: Mapping[str, Any]) -> slice:
    return slice(attributes.get("start", 0), attributes.get("end", site_rank))


def _shape_infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(INT64, (len(ctx.shape()[_window(ctx.rank(), ctx.attributes)]),)),)


def _shape_known(ctx: OpContext) -> Sequence[np.ndarray]:
    return (dims_array(ctx.shape()[_window(ctx.rank(), ctx.attributes)]),)


def _shape_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return np.array(x.shape[_window(x.ndim, attributes)], np.int64)


def _size_infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(INT64, ()),)


def _size_known(ctx: OpContext) -> Sequence[np.ndarray]:
    return (dims_array([product(ctx.shape())], ()),)


def _size_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return np.array(x.size, np.int64)


def _constant_value(attributes: Mapping[str, Any]) -> np.ndarray:
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32), ("value_int", np.int64)):
        if name in attributes:
            return np.array(attributes[name], dtype)
    return np.array(attributes["value_ints"], np.int64) if "value_ints" in attributes else attributes["value"]


def _constant_infer(ctx: OpContext) -> Sequence[TensorType]:
    value = _constant_value(ctx.attributes)
    element = ElementType.of(value.dtype)
    if element is None:
        raise UnsupportedUse(f"constants of type {value.dtype} are not supported")
    return (TensorType(element, value.shape),)


def _constant_known(ctx: OpContext) -> Sequence[np.ndarray]:
    return (_constant_value(ctx.attributes),)


def _constant_reference(attributes: Mapping[str, Any]) -> np.ndarray:
    return _constant_value(attributes)


shape = Op(
    "Shape", since=(1, 13, 15, 19), infer=_shape_infer, shape_value=_shape_known, reference=_shape_reference
)
size = Op("Size", since=(1, 13, 19), infer=_size_infer, shape_value=_size_known, reference=_size_reference)
constant = Op(
    "Constant",
    since=(1, 9, 11, 12, 13),
    infer=_constant_infer,
    shape_value=_constant_known,
    reference=_constant_reference,
)

OPS = (shape, size, constant)
