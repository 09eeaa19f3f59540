"""LossIsFinite: a training step ends here when its loss is infinite or no number (passes/rewrite/loss_check.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import FLOATS, KernelCall, KernelFunction, Op, OpContext, TestCase, same_as

loss_is_finite_kernel = KernelFunction("loss_is_finite", ("y:T=", "x:T"), types={"T": FLOATS})


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return (loss_is_finite_kernel.call(ctx.result(), ctx.name(0), types=(ctx.element(),)),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return x


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (1,), (5,)):
        yield TestCase(f"shape {list(shape)}", (np.asarray(random.standard_normal(shape)),), ulps=0)
    largest = np.array([np.finfo(np.float32).max, np.finfo(np.float32).min])
    yield TestCase("the largest", (largest,), ulps=0, smooth=False)  # in halves these are infinite


loss_is_finite = Op(
    "LossIsFinite",
    domain="minbuild",
    infer=same_as(0),
    reference=_reference,
    lower=_lower,
    kernels=(loss_is_finite_kernel,),
    in_place=((0, 0),),
    cases=_cases,
)

KERNELS = (loss_is_finite_kernel,)
OPS = (loss_is_finite,)
