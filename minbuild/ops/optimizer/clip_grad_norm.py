"""InplaceClipGradNorm: limits the length of all gradients taken as one vector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import (
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
)

clip_kernel = KernelFunction("clip_grad_norm", ("g:T=",), params=("max_norm:float",), types={"T": FLOATS})


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    kind = ctx.attribute("norm_type", "fro")
    if kind != "fro":
        raise UnsupportedUse(f"norm_type '{kind}' is not supported; only 'fro' is")
    return (TensorType(ctx.element(), ctx.shape()),)


def _reference(attributes: Mapping[str, Any], g: np.ndarray) -> np.ndarray:
    return g * min(1.0, attributes.get("max_norm", 1.0) / (np.sqrt((g * g).sum()) + float(np.float32(1e-6))))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    # Output and input are the same gradients.
    limit = float(ctx.attribute("max_norm", 1.0))
    return (clip_kernel.call(ctx.name(0), types=(ctx.element(),), params=(limit,)),)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for count in (1, 9, 1024, 5000):
        for limit in (0.5, 1e6):
            yield TestCase(
                f"{count} up to {limit}", (random.standard_normal(count),), {"max_norm": limit}, ulps=8
            )


clip_grad_norm = Op(
    "InplaceClipGradNorm",
    domain="com.microsoft",
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(clip_kernel,),
    mutates={0: 0},
    cases=_cases,
)

KERNELS = (clip_kernel,)
OPS = (clip_grad_norm,)
