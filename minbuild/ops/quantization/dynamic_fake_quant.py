"""DynamicFakeQuant: rounds to the 256 numbers that DynamicQuantizeLinear finds for a tensor; its gradient is straight
through.

The range is the tensor's own, so that at most half a step of it is cut off: the gradient is the identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import Op, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.shape_rules import same_as
from minbuild.ops.core.value import Results

_LAST = 255  # of the quantised numbers


def _body(b: GraphBuilder) -> Results:
    """A range that holds zero, and a zero point that is a whole number. A range of zeros has the scale 1, as in ONNX
    Runtime; ONNX's own function divides by 0 then."""
    x, axes = b.x[0], range(b.ctx.rank())
    low = b.add("Min", b.reduce("ReduceMin", x, axes, keepdims=False), b.constant(0))
    high = b.add("Max", b.reduce("ReduceMax", x, axes, keepdims=False), b.constant(0))
    step = (high - low) / _LAST
    scale = b.where(step > 0, step, 1)
    zero = ((0 - low) / scale).round()
    return b.microsoft("FakeQuant", x, scale, zero, quant_min=0, quant_max=_LAST)


def _gradient(b: GradientBuilder) -> Results:
    return b.dy[0]


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    low, high = min(0.0, x.min()), max(0.0, x.max())
    scale = (high - low) / _LAST or 1.0
    zero = np.rint(-low / scale)
    return np.asarray((np.clip(np.rint(x / scale) + zero, 0, _LAST) - zero) * scale)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    # A range of 255 times a power of two: ties are the same in every precision.
    for name, low, high in (("both signs", -100, 155), ("positive", 0, 255), ("negative", -255, 0)):
        x = random.integers(low * 4, high * 4 + 1, (3, 4, 5)) / 32
        x.flat[:2] = low / 8, high / 8
        yield TestCase(name, (x,), ulps=2, smooth=False)
    yield TestCase("zeros", (np.zeros((2, 3)),), smooth=False)
    yield TestCase("one number", (np.array(0.5),), ulps=2, smooth=False)


dynamic_fake_quant = Op(
    "DynamicFakeQuant",
    domain="minbuild",
    infer=same_as(0),
    reference=_reference,
    decompose=_body,
    decomposes_to=(
        *("Div", "Greater", "Max", "Min", "ReduceMax", "ReduceMin", "Round", "Sub", "Where"),
        "com.microsoft:FakeQuant",
    ),
    cases=_cases,
    gradient=_gradient,
)

OPS = (dynamic_fake_quant,)
