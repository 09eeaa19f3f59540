"""Ceil, Floor and Round (half to even)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from minbuild.ops.core.definition import TestCase, every_input
from minbuild.ops.core.elementwise import Cases, computing, kernel_of, unary, unary_cases, zero_gradient

ceil_kernel = kernel_of("ceil")
floor_kernel = kernel_of("floor")
round_kernel = kernel_of("round")

_TIES = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 8388607.5, -8388609.0, 4.5e15, 1e30, -1e30])
_ANY: Cases = unary_cases(0)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from _ANY(random)
    yield TestCase("ties and large numbers", (_TIES,), ulps=0, smooth=False)


ceil = unary("Ceil", ceil_kernel, computing(np.ceil), _cases, zero_gradient)
floor = unary("Floor", floor_kernel, computing(np.floor), _cases, zero_gradient)
round_ = unary(
    "Round",
    round_kernel,
    computing(np.rint),
    _cases,
    zero_gradient,
    since=(11, 22),
    batched_inputs=every_input,
)

KERNELS = (ceil_kernel, floor_kernel, round_kernel)
OPS = (ceil, floor, round_)
