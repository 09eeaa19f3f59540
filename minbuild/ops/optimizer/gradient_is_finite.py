"""GradientIsFinite: a training step that updates parameters ends here where a gradient is infinite or no number
(passes/rewrite/fuse_updates.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import FLOATS, KernelCall, KernelFunction, Op, OpContext, TestCase
from minbuild.ops.optimizer.update_rules import updated_flag

# The parameter is not changed. As an output it keeps the check before its update, and the session finds its name by it.
gradient_is_finite_kernel = KernelFunction("gradient_is_finite", ("p:T=", "g:T"), types={"T": FLOATS})


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return (gradient_is_finite_kernel.call(ctx.name(0), ctx.name(1), types=(ctx.element(),)),)


def _reference(attributes: Mapping[str, Any], p: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, ...]:
    return np.array([True]), p


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((1,), (7,), (3, 5), (1001,)):
        p, g = random.standard_normal((2, *shape))
        yield TestCase(f"shape {list(shape)}", (p, g), absent=frozenset({0}), ulps=0)


gradient_is_finite = Op(
    "GradientIsFinite",
    domain="minbuild",
    infer=updated_flag,
    reference=_reference,
    lower=_lower,
    kernels=(gradient_is_finite_kernel,),
    mutates={0: None},
    cases=_cases,
)

KERNELS = (gradient_is_finite_kernel,)
OPS = (gradient_is_finite,)
