"""Upsample, which Resize has replaced: corners of elements stay where they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import FLOAT, Op, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.image.resize import resized
from minbuild.ops.image.resize_cases import SHAPES

_UPSAMPLE = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def _upsampled(b: GraphBuilder) -> tuple[Value, dict[str, Any]]:
    """Scales, an attribute in opset 7, and the attributes of the Resize that does the same."""
    scales = b.x[1] if b.has(1) else b.constant(b.ctx.attribute("scales", ()), FLOAT)
    return scales, {"mode": b.ctx.attribute("mode", "nearest"), **_UPSAMPLE}


def _body(b: GraphBuilder) -> Results:
    scales, attributes = _upsampled(b)
    return b.add("Resize", b.x[0], None, scales, **attributes)


def _gradient(b: GradientBuilder) -> Results:
    scales, attributes = _upsampled(b)
    return b.microsoft("ResizeGrad", b.dy[0], b.x[0], None, scales, **attributes)


def _reference(attributes: Mapping[str, Any], x: np.ndarray, scales: np.ndarray | None = None) -> np.ndarray:
    given = np.array(attributes["scales"], np.float32) if scales is None else scales
    return resized({"mode": attributes.get("mode", "nearest"), **_UPSAMPLE}, x, None, given)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, factors in SHAPES[:2]:
        for mode in ("nearest", "linear"):
            inputs = (random.standard_normal(shape), np.array(factors, np.float64))
            yield TestCase(f"{list(shape)} {mode}", inputs, {"mode": mode}, frozenset({1}), ulps=16)
            yield TestCase(
                f"{list(shape)} {mode} opset 7", inputs[:1], {"mode": mode, "scales": factors}, ulps=16
            )


upsample = Op(
    "Upsample",
    since=(7, 9, 10),
    decompose=_body,
    decomposes_to=("Resize",),
    reference=_reference,
    gradient=_gradient,
    cases=_cases,
)

OPS = (upsample,)
