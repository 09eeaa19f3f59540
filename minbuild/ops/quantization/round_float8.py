"""RoundFloat8: to the numbers of an eight-bit real type, with a straight-through gradient within its range. Pairs of
QuantizeLinear and DequantizeLinear of such types become it (frontend/onnx/float8.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import TestCase, itself
from minbuild.ops.core.elementwise import Cases, kernel_of, numbers, unary, unary_cases
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results

# The smallest normal number, the largest one, and the distance of two numbers from 1 on: of float8e4m3fn.
_LEAST, _MOST, _STEP = ("least", 2.0**-6), ("most", 448.0), ("step", 0.125)
round_float8_kernel = kernel_of(
    "round_float8", params=tuple(f"{name}:float" for name, _ in (_LEAST, _MOST, _STEP))
)
_ATTRIBUTES: tuple[Mapping[str, float], ...] = (
    {},
    {"least": 2.0**-7, "most": 240.0, "step": 0.125},
    {"least": 2.0**-14, "most": 57344.0, "step": 0.25},
)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """To the nearest, of two the even one; what is beyond the largest number becomes that."""
    least, most, step = (attributes.get(*given) for given in (_LEAST, _MOST, _STEP))
    with np.errstate(invalid="ignore"):
        a = np.minimum(np.abs(x), most)
        power = np.exp2(np.frexp(np.maximum(np.nan_to_num(a), least))[1] - 1.0) * step
        return np.copysign(np.rint(a / power) * power, x)


def _gradient(b: GradientBuilder) -> Results:
    inside = b.x[0].abs() <= b.constant(float(b.ctx.attribute(*_MOST)))
    return b.where(inside, b.dy[0], 0)


_ANY: Cases = unary_cases(0, _ATTRIBUTES, smooth=False)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from _ANY(random)
    for attributes in _ATTRIBUTES:
        least, most, step = (attributes.get(*given) for given in (_LEAST, _MOST, _STEP))
        whole = np.array([1, 1.5, 1.9999, 2.5, 7.5, 8.5, 9.5, 16]) * least * step
        ties = (1 + np.arange(32) / 16) * np.exp2(np.arange(32) - 12.0)
        large = most * np.array([0.9, 0.97, 0.999, 1, 1.01, 1.5, 1e9])
        values = np.concatenate((whole, ties, ties * (1 + step / 2), large))
        yield TestCase(
            f"ties and ends {attributes}", (np.append(values, -values),), attributes, ulps=0, smooth=False
        )


round_float8 = unary(
    "RoundFloat8",
    round_float8_kernel,
    _reference,
    _cases,
    _gradient,
    since=(1,),
    domain="minbuild",
    params=numbers(_LEAST, _MOST, _STEP),
    rematerialize=itself,
)

KERNELS = (round_float8_kernel,)
OPS = (round_float8,)
