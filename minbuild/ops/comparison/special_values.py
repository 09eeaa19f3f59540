"""IsNaN and IsInf: which elements are no finite numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import BOOL, FLOATS, KernelCall, KernelFunction, Op, OpContext, TestCase
from minbuild.ops.core.elementwise import SHAPES, computing, lower_to

is_nan_kernel = KernelFunction("is_nan", ("y:bool=", "x:T"), types={"T": FLOATS})
is_inf_kernel = KernelFunction(
    "is_inf", ("y:bool=", "x:T"), params=("negative:int", "positive:int"), types={"T": FLOATS}
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(BOOL, ctx.shape()),)


def _lower_is_inf(ctx: OpContext) -> Sequence[KernelCall]:
    which = tuple(int(ctx.attribute(name, 1)) for name in ("detect_negative", "detect_positive"))
    return (is_inf_kernel.call(ctx.result(), ctx.name(0), types=(ctx.element(),), params=which),)


def _is_inf(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    negative, positive = (attributes.get(f"detect_{sign}", 1) for sign in ("negative", "positive"))
    return np.asarray((np.isneginf(x) & bool(negative)) | (np.isposinf(x) & bool(positive)))


def _values(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.choice(np.array([0.0, 1.5, -2.0, np.inf, -np.inf, np.nan, -np.nan]), shape)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in SHAPES:
        yield TestCase(f"shape {list(shape)}", (np.asarray(_values(random, shape)),))


def _is_inf_cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from _cases(random)
    for negative in (0, 1):
        for positive in (0, 1):
            signs = {"detect_negative": negative, "detect_positive": positive}
            yield TestCase(f"{signs}", (_values(random, (40,)),), signs)


is_nan = Op(
    "IsNaN",
    since=(9, 13, 20),
    infer=_infer,
    reference=computing(np.isnan),
    lower=lower_to(is_nan_kernel),
    kernels=(is_nan_kernel,),
    cases=_cases,
)
is_inf = Op(
    "IsInf",
    since=(10, 20),
    infer=_infer,
    reference=_is_inf,
    lower=_lower_is_inf,
    kernels=(is_inf_kernel,),
    cases=_is_inf_cases,
)

KERNELS = (is_nan_kernel, is_inf_kernel)
OPS = (is_nan, is_inf)
