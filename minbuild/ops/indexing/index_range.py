"""IndexRange: refuses a batch whose indices name nothing, before the first of its slices changes gradients
(planning/micro_batches.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import INDICES, KernelCall, KernelFunction, Op, OpContext, TestCase

index_range_kernel = KernelFunction(
    "index_range",
    ("least:I=", "x:I"),
    params=("from:int", "to:int", "ignores:int", "ignore_index:int"),
    types={"I": INDICES},
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ctx.element(), ()),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    ignored = ctx.attribute("ignore_index")
    limits = (int(ctx.attribute("from")), int(ctx.attribute("to")))
    params = (*limits, int(ignored is not None), int(ignored or 0))
    return (index_range_kernel.call(ctx.result(), ctx.name(0), types=(ctx.element(),), params=params),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """The least index, and 0 where none is below it."""
    counted = x[x != attributes.get("ignore_index", np.iinfo(np.int64).min)]
    return np.asarray(min(0, counted.min(initial=0)), x.dtype)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for dtype in (np.int32, np.int64):
        for ignored in (None, -100):
            x = random.integers(-7, 7, (5, 3)).astype(dtype)
            if ignored:
                x[::2] = ignored
            attributes = {"from": -7, "to": 7} | ({"ignore_index": ignored} if ignored else {})
            yield TestCase(f"{np.dtype(dtype)}, ignored {ignored}", (x,), attributes, ulps=0)


index_range = Op(
    "IndexRange",
    domain="minbuild",
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(index_range_kernel,),
    cases=_cases,
)

KERNELS = (index_range_kernel,)
OPS = (index_range,)
