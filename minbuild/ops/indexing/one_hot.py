"""OneHot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import STORED, Case, KernelFunction, Launch, Op, Site, stored
from minbuild.ops.indexing.indexed import with_int64

one_hot_kernel = KernelFunction(
    "one_hot", ("y:T=", "indices:int64", "values:T", "layout:extent"), types={"T": STORED}
)


def _new_axis(site: Site) -> int:
    axis = int(site.attribute("axis", -1))
    return axis + site.rank() + 1 if axis < 0 else axis


def _infer(site: Site) -> Sequence[TensorType]:
    shape, axis, (depth,) = site.shape(), _new_axis(site), site.dims(1)
    whole = depth if not isinstance(depth, float) else int(depth)
    return (TensorType(site.element(2), (*shape[:axis], whole, *shape[axis:])),)


def _reference(
    attributes: Mapping[str, Any], indices: np.ndarray, depth: np.ndarray, values: np.ndarray
) -> np.ndarray:
    size, axis = int(depth.reshape(()).item()), attributes.get("axis", -1)
    whole = indices.astype(np.int64)
    hot = np.eye(size, dtype=bool)[np.where((whole >= -size) & (whole < size), whole, 0)]
    hot &= ((whole >= -size) & (whole < size))[..., None]
    return np.moveaxis(np.where(hot, values[1], values[0]), -1, axis).astype(values.dtype)


def _select(site: Site) -> Sequence[Launch]:
    shape, axis = site.result_shape(), _new_axis(site)
    layout = product(shape[:axis]), shape[axis], product(shape[axis + 1 :])
    launch = one_hot_kernel.launch(
        site.result(),
        site.name(0),
        site.name(2),
        TensorType(ElementType.UINT8, layout),
        types=(stored(site.element(2)),),
    )
    return (launch,)


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for shape, axis in (((), -1), ((4,), -1), ((4,), 0), ((2, 3), 1), ((2, 3), -2)):
        for dtype in (np.int64, np.int32, np.float64):
            indices = np.asarray(random.integers(-7, 7, shape)).astype(dtype)
            for values in (np.array([0.5, 2.0]), np.array([3, 4], np.int8)):
                name = f"{list(shape)} axis {axis} {np.dtype(dtype)} {values.dtype}"
                inputs = (indices, np.array([5]), values)
                yield Case(name, inputs, {"axis": axis}, frozenset({1}), ulps=0)


one_hot = Op(
    "OneHot",
    since=(9, 11, 28),
    infer=_infer,
    reference=_reference,
    select=_select,
    body=with_int64(0, "OneHot"),
    cases=_cases,
)
