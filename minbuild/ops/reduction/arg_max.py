"""ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import INT64, NUMBERS, KernelCall, KernelFunction, Op, OpContext, TestCase

arg_max_kernel = KernelFunction(
    "arg_max",
    ("y:int64=", "x:T", "groups:extent"),
    params=("last:int", "min:int"),
    types={"T": NUMBERS},
    features={"last": "takes the last of equal elements", "min": "finds the smallest"},
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    shape, axis = ctx.shape(), ctx.axis()
    kept = (1,) if ctx.attribute("keepdims", 1) else ()
    return (TensorType(INT64, shape[:axis] + kept + shape[axis + 1 :]),)


def _lower(smallest: bool) -> Callable[[OpContext], Sequence[KernelCall]]:
    def lower(ctx: OpContext) -> Sequence[KernelCall]:
        shape, axis = ctx.shape(), ctx.axis()
        groups = (product(shape[:axis]), shape[axis], product(shape[axis + 1 :]))
        asked = {"last": bool(ctx.attribute("select_last_index", 0)), "min": smallest}
        call = arg_max_kernel.call(
            ctx.result(),
            ctx.name(0),
            TensorType(ctx.element(), groups),
            types=(ctx.element(),),
            params=tuple(asked.values()),
            features=tuple(name for name, used in asked.items() if used),
        )
        return (call,)

    return lower


def _reference(find: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
        axis, keep = attributes.get("axis", 0), bool(attributes.get("keepdims", 1))
        if not attributes.get("select_last_index", 0):
            return np.asarray(find(x, axis=axis, keepdims=keep))
        return np.asarray(x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis, keepdims=keep))

    return reference


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axis in (((1,), 0), ((7,), 0), ((5, 10), -1), ((3, 4, 5), 1), ((4, 3, 2), 0)):
        for keepdims in (0, 1):
            for last in (0, 1):
                x = (random.standard_normal(shape) * 2).round()  # with ties
                attributes = {"axis": axis, "keepdims": keepdims, "select_last_index": last}
                yield TestCase(f"{list(shape)} {attributes}", (x,), attributes, ulps=0)
    for dtype in (np.int8, np.uint8, np.int64, np.uint64, np.uint16):
        numbers = random.integers(0, 100, (4, 6)).astype(dtype)
        yield TestCase(f"of {np.dtype(dtype)}", (numbers,), {"axis": 1}, ulps=0)


arg_max = Op(
    "ArgMax",
    since=(1, 11, 12, 13),
    infer=_infer,
    reference=_reference(np.argmax),
    lower=_lower(smallest=False),
    kernels=(arg_max_kernel,),
    cases=_cases,
)
arg_min = Op(
    "ArgMin",
    since=(1, 11, 12, 13),
    infer=_infer,
    reference=_reference(np.argmin),
    lower=_lower(smallest=True),
    kernels=(arg_max_kernel,),
    cases=_cases,
)

KERNELS = (arg_max_kernel,)
OPS = (arg_max, arg_min)
