"""Mod with broadcasting: what a division towards zero (attribute fmod) or downwards leaves over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.broadcasting import (
    AXES,
    WALK,
    call_binary,
    integer_operands,
    joint_shape,
    joint_type,
    operands,
)
from minbuild.ops.core.definition import NUMBERS, KernelCall, KernelFunction, Op, OpContext, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results


def _kernel(function: str) -> KernelFunction:
    return KernelFunction(function, ("y:T=", "a:T", "b:T", WALK), params=AXES, types={"T": NUMBERS})


remainder_kernel = _kernel("remainder")
modulo_kernel = _kernel("modulo")


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return (call_binary(remainder_kernel if ctx.attribute("fmod", 0) else modulo_kernel, ctx),)


def _reference(attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integers modulo zero are zero."""
    if a.dtype.kind == "O" or b.dtype.kind == "O":
        raise TypeError("remainders of dimensions are the device's")
    with np.errstate(all="ignore"):
        return np.asarray(np.fmod(a, b) if attributes.get("fmod", 0) else np.mod(a, b))


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    special = np.array([0.0, -0.0, 1.0, -2.5, 1e30, 1e-30, np.inf, -np.inf, np.nan])
    for fmod in (0, 1):
        attributes = {"fmod": fmod}
        for name, a, b in operands(random):
            away = np.where(b < 0, b - 0.25, b + 0.25)
            yield TestCase(f"{name}, fmod {fmod}", (a * 9, away), attributes, ulps=1, smooth=False)
        b = random.standard_normal((5, 9))
        for divisor in (b, b[0], b[:, :1], np.array(0.75)):
            times = random.integers(-4, 4, (5, 9)) + random.uniform(0.3, 0.7, (5, 9))
            name = f"{list(divisor.shape)} between jumps, fmod {fmod}"
            yield TestCase(name, (divisor * times, divisor), attributes, ulps=1)
        inputs = random.uniform(0.2, 0.8, 9), np.abs(b) + 1
        yield TestCase(f"[9] once at most, fmod {fmod}", inputs, attributes, ulps=1)
        for name, a, b in integer_operands(random):
            yield TestCase(f"{name}, fmod {fmod}", (a, b), attributes)
        yield TestCase(f"special values, fmod {fmod}", (special[:, None], special), attributes, ulps=0)


def _gradient(b: GradientBuilder) -> Results:
    """dA = dY, dB = -dY * (A - Y) / B, the whole number of times that B was taken away."""
    shape, dy = joint_shape(b.ctx), b.dy[0]
    times = (b.y[0] - b.x[0]) / b.x[1]
    db = b.summed_to(dy * times, shape, 1)
    return b.summed_to(dy, shape, 0), db


mod = Op(
    "Mod",
    since=(10, 13, 28),
    infer=joint_type,
    reference=_reference,
    lower=_lower,
    kernels=(modulo_kernel, remainder_kernel),
    in_place=((0, 0), (0, 1)),
    cases=_cases,
    gradient=_gradient,
)

KERNELS = (remainder_kernel, modulo_kernel)
OPS = (mod,)
