"""Range: numbers at equal distances. Their count may be a free dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Dim, ceil_div
from minbuild.ops.core.definition import FLOATS, KernelCall, KernelFunction, Op, OpContext, UnsupportedUse
from minbuild.ops.shape.fill import SMALL, element_words

range_kernel = KernelFunction(
    "range",
    ("y:T=",),
    params=("start_0:int", "start_1:int", "delta_0:int", "delta_1:int"),
    types={"T": (*FLOATS, ElementType.INT16, ElementType.INT32, ElementType.INT64)},
)


def _limits(ctx: OpContext) -> tuple[Any, Any, Any]:
    """Start, limit and delta: numbers or dimensions."""
    found = []
    for i in range(3):
        content = ctx.content(i)
        if content is None or content.size != 1:
            raise UnsupportedUse(f"input {i} must be a number, or a size, known when the trainer is built")
        found.append(content.ravel().tolist()[0])
    return found[0], found[1], found[2]


def _count(start: Any, limit: Any, delta: Any) -> Dim:
    if delta == 0:
        raise UnsupportedUse("a delta of 0 never reaches the limit")
    if all(isinstance(n, (int, float)) for n in (start, limit, delta)):
        return max(0, int(np.ceil((limit - start) / delta)))
    if not isinstance(delta, int):
        raise UnsupportedUse("its delta must be a whole number where its limits are sizes")
    return ceil_div(limit - start, delta) if delta > 0 else ceil_div(start - limit, -delta)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ctx.element(), (_count(*_limits(ctx)),)),)


def _numbers(start: Any, count: int, delta: Any, dtype: Any) -> np.ndarray:
    return (start + np.arange(count) * delta).astype(dtype)


def _known(ctx: OpContext) -> Sequence[np.ndarray | None]:
    start, limit, delta = _limits(ctx)
    count = _count(start, limit, delta)
    if not isinstance(count, int) or count > SMALL:
        return (None,)
    return (_numbers(start, count, delta, np.asarray(ctx.content(0)).dtype),)


def _reference(
    attributes: Mapping[str, Any], start: np.ndarray, limit: np.ndarray, delta: np.ndarray
) -> np.ndarray:
    first, last, step = (x.reshape(()).item() for x in (start, limit, delta))
    return _numbers(first, max(0, int(np.ceil((last - first) / step))), step, start.dtype)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    start, _, delta = _limits(ctx)
    if not isinstance(start, (int, float)) or not isinstance(delta, (int, float)):
        raise UnsupportedUse("its start and delta must be numbers, not sizes of inputs")
    element = ctx.element()
    params = (*element_words(start, element), *element_words(delta, element))
    return (range_kernel.call(ctx.result(), types=(element,), params=params),)


range_op = Op(
    "Range",
    since=(11, 27),
    infer=_infer,
    shape_value=_known,
    reference=_reference,
    folds=False,
    lower=_lower,
    kernels=(range_kernel,),
)

KERNELS = (range_kernel,)
OPS = (range_op,)
