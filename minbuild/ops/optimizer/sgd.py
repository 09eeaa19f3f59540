"""SGDOptimizerV2: one pass over all trained parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import (
    ELEMENTS,
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
)
from minbuild.ops.optimizer.update_rules import updated_flag

sgd_kernel = KernelFunction("sgd", ("p:T=", "g:T", "rate:float"), types={"T": FLOATS}, cut=ELEMENTS)


def _reference(
    attributes: Mapping[str, Any], rate: np.ndarray, p: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return np.array([True]), p - rate * g


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    rate, p, g = ctx.names[:3]
    return (sgd_kernel.call(p, g, rate, types=(ctx.element(1),)),)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for count in (1, 7, 64, 1001):
        p, g = random.standard_normal((2, count))
        yield TestCase(
            f"{count} parameters", (np.array([0.125], np.float32), p, g), absent=frozenset({0}), ulps=2
        )


sgd = Op(
    "SGDOptimizerV2",
    domain="com.microsoft",
    infer=updated_flag,
    reference=_reference,
    lower=_lower,
    kernels=(sgd_kernel,),
    mutates={1: None},
    cases=_cases,
)

KERNELS = (sgd_kernel,)
OPS = (sgd,)
