"""AdaptLossScale: an optimizer step ends here, without an update, where a gradient is infinite or no number. The scale
of the loss is halved then, and doubled after many updates (dynamic loss scaling, authoring/loss_scaling.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import FLOATS, KernelCall, KernelFunction, Op, OpContext, TestCase

SMALLEST_SCALE, LARGEST_SCALE = 2.0**-24, 2.0**24  # as in adapt_loss_scale.cc

adapt_kernel = KernelFunction(
    "adapt_loss_scale",
    ("g:T=", "scale:float=", "good:float="),
    params=("growth_interval:int",),
    types={"T": FLOATS},
)


def adapted(scale: float, good: float, growth_interval: int, finite: bool) -> tuple[float, float]:
    """`scale`, and `good`, the number of updates since it changed, after a step whose gradients were `finite`.
    `growth_interval` is the number of updates after which the scale doubles."""
    if not finite:
        return max(scale / 2, SMALLEST_SCALE), 0
    if good + 1 < growth_interval:
        return scale, good + 1
    return min(scale * 2, LARGEST_SCALE), 0


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return tuple(TensorType(ctx.element(i), ctx.shape(i)) for i in range(3))


def _reference(
    attributes: Mapping[str, Any], g: np.ndarray, scale: np.ndarray, good: np.ndarray
) -> tuple[np.ndarray, ...]:
    finite = bool(np.isfinite(g).all())
    new = adapted(float(scale[0]), float(good[0]), attributes["growth_interval"], finite)
    return g, *(np.full_like(scale, value) for value in new)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    names = tuple(ctx.name(i) for i in range(3))
    return (
        adapt_kernel.call(
            *names, types=(ctx.element(),), params=(int(ctx.attribute("growth_interval", 2000)),)
        ),
    )


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    g = random.standard_normal(37)
    for scale, good in ((1024.0, 0), (1024.0, 3), (LARGEST_SCALE, 3), (1.0, 2)):
        inputs = (g, np.array([scale], np.float32), np.array([good], np.float32))
        yield TestCase(f"{scale}, {good}", inputs, {"growth_interval": 4}, outputs=3, ulps=0)


adapt_loss_scale = Op(
    "AdaptLossScale",
    domain="minbuild",
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(adapt_kernel,),
    mutates={0: 0, 1: 1, 2: 2},
    cases=_cases,
)

KERNELS = (adapt_kernel,)
OPS = (adapt_loss_scale,)
