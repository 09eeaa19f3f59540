"""Where with broadcasting: elements of any type, moved by their size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.broadcasting import FEATURES, broadcast_loop_of, joint_shape
from minbuild.ops.core.definition import (
    BROADCAST,
    STORAGE_TYPES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    storage_type,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results

where_kernel = KernelFunction(
    "where",
    ("y:T=", "condition:bool", "a:T", "b:T", "walk:extent?"),
    params=("condition_axes:int", "a_axes:int", "b_axes:int"),
    types={"T": STORAGE_TYPES},
    features={"broadcast": FEATURES["broadcast"]},
    cut=BROADCAST,
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ctx.element(1), joint_shape(ctx)),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    loop = broadcast_loop_of(ctx.result_shape(), *(ctx.shape(i) for i in range(3)))
    call = where_kernel.call(
        ctx.result(),
        *ctx.names[:3],
        loop.extent,
        types=(storage_type(ctx.element(1)),),
        params=loop.axes,
        features=tuple(f for f in loop.features if f in where_kernel.features),
    )
    return (call,)


def _reference(
    attributes: Mapping[str, Any], condition: np.ndarray, a: np.ndarray, b: np.ndarray
) -> np.ndarray:
    """Dimensions as well as numbers, but for the condition."""
    if condition.dtype == object:
        raise TypeError("how free dimensions compare is known on the device only")
    return np.where(condition, a, b)


_SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((), (), ()),
    ((7,), (7,), (7,)),
    ((2, 3, 5), (2, 3, 5), ()),
    ((2, 3, 5), (1,), (2, 3, 5)),
    ((9,), (5, 9), (5, 1)),
    ((), (5, 9), (9,)),
    ((2, 1, 4, 1), (1, 3, 1, 5), (2, 3, 1, 1)),
    ((1, 1, 4, 4), (2, 3, 4, 4), (1,)),
    ((2, 1, 1, 4), (2, 3, 4, 4), ()),
    ((0, 3), (3,), ()),
)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shapes in _SHAPES:
        condition = random.standard_normal(shapes[0]) > 0
        a, b = random.standard_normal(shapes[1]), random.standard_normal(shapes[2])
        name = " ".join(str(list(s)) for s in shapes)
        yield TestCase(name, (condition, a, b), ulps=0)
        for dtype in (np.int8, np.uint16, np.int32, np.int64, np.bool_):
            yield TestCase(
                f"{name} {np.dtype(dtype)}", (condition, (a * 9).astype(dtype), (b * 9).astype(dtype))
            )
    special = np.array([np.nan, np.inf])
    yield TestCase(
        "no number where it was not asked for", (np.array([True, False]), special[::-1], special), ulps=0
    )


def _gradient(b: GradientBuilder) -> Results:
    """Each side has the gradient where it was chosen, and 0 elsewhere."""
    shape, zero = joint_shape(b.ctx), b.constant(0, b.ctx.element(1))
    condition, dy = b.x[0], b.dy[0]
    da = b.summed_to(b.where(condition, dy, zero), shape, 1)
    db = b.summed_to(b.where(condition, zero, dy), shape, 2)
    return (None, da, db)


where = Op(
    "Where",
    since=(9, 16),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(where_kernel,),
    in_place=((0, 1), (0, 2)),
    cases=_cases,
    gradient=_gradient,
)

KERNELS = (where_kernel,)
OPS = (where,)
