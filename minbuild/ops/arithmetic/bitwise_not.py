"""BitwiseNot: the complement of every bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import (
    STORAGE_TYPES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    same_as,
    storage_type,
)

bitwise_not_kernel = KernelFunction("bitwise_not", ("y:T=", "x:T"), types={"T": STORAGE_TYPES})


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return (bitwise_not_kernel.call(ctx.result(), ctx.name(0), types=(storage_type(ctx.element()),)),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    if x.dtype == object:
        raise TypeError("dimensions have no bits")
    return np.asarray(np.invert(x))


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for bits in (8, 16, 32, 64):
        for kind in (f"int{bits}", f"uint{bits}"):
            bounds = np.iinfo(kind)
            for shape in ((), (9,), (2, 3)):
                x = random.integers(bounds.min, bounds.max, shape, dtype=kind, endpoint=True)
                yield TestCase(f"{kind} {list(shape)}", (np.asarray(x),), ulps=0)


bitwise_not = Op(
    "BitwiseNot",
    since=(18,),
    infer=same_as(0),
    reference=_reference,
    lower=_lower,
    kernels=(bitwise_not_kernel,),
    in_place=((0, 0),),
    cases=_cases,
)

KERNELS = (bitwise_not_kernel,)
OPS = (bitwise_not,)
