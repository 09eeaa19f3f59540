"""Scaler, Binarizer and Normalizer of ai.onnx.ml: what scikit-learn's pipelines do to features before the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import FLOAT, Op, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results

_FEATURES = (0.5, -1.5, 2.0)


def _constants(attributes: Mapping[str, Any], columns: Any) -> tuple[np.ndarray, np.ndarray]:
    """Offset and scale of each column."""
    offset, scale = (
        np.asarray(attributes.get(n, d), np.float32) for n, d in (("offset", (0,)), ("scale", (1,)))
    )
    for name, values in (("offset", offset), ("scale", scale)):
        if values.size not in (1, columns):
            raise UnsupportedUse(
                f"{values.size} numbers in '{name}' for {columns} columns; give one, or one for each"
            )
    return offset, scale


def _scaler_body(b: GraphBuilder) -> Results:
    offset, scale = _constants(b.ctx.attributes, b.ctx.shape()[-1])
    return (b.x[0].cast(FLOAT) - b.constant(offset, FLOAT)) * b.constant(scale, FLOAT)


def _scaler_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    offset, scale = (
        a.astype(np.float64 if x.dtype == np.float64 else np.float32)
        for a in _constants(attributes, x.shape[-1])
    )
    return (x - offset) * scale


def _scaler_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((4, 3), (3,), (2, 5, 3)):
        x = random.standard_normal(shape)
        yield TestCase(f"{list(shape)} each", (x,), {"offset": _FEATURES, "scale": (2.0, 0.25, -1.5)})
        yield TestCase(f"{list(shape)} one scale", (x,), {"offset": _FEATURES, "scale": (0.5,)})
        yield TestCase(f"{list(shape)} one offset", (x,), {"offset": (0.25,), "scale": _FEATURES})


def _binarizer_body(b: GraphBuilder) -> Results:
    threshold = np.float32(b.ctx.attribute("threshold", 0.0))
    return (b.x[0] > float(threshold)).cast(b.ctx.element())


def _binarizer_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return (x > np.float32(attributes.get("threshold", 0.0))).astype(x.dtype)


def _binarizer_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((7,), (4, 3)):
        x = random.standard_normal(shape)
        yield TestCase(f"{list(shape)}", (x,), ulps=0)
        yield TestCase(f"{list(shape)} threshold", (x,), {"threshold": 0.75}, ulps=0)


def _norm(attributes: Mapping[str, Any]) -> str:
    norm = str(attributes.get("norm", "MAX"))
    if norm not in ("MAX", "L1", "L2"):
        raise UnsupportedUse(f"norm '{norm}'; there are MAX, L1 and L2")
    return norm


def _normalizer_body(b: GraphBuilder) -> Results:
    """Rows whose norm is zero stay as they are, as in ONNX Runtime."""
    norm, last = _norm(b.ctx.attributes), (b.ctx.rank() - 1,)
    x = b.x[0].cast(FLOAT)
    sizes = {
        "MAX": lambda: x.max(last),
        "L1": lambda: x.abs().sum(last),
        "L2": lambda: (x * x).sum(last).sqrt(),
    }
    size = sizes[norm]()
    return x / b.where(size.equal(b.constant(0, FLOAT)), 1, size)


def _normalizer_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    x = x if x.dtype.kind == "f" else x.astype(np.float32)
    order = {"MAX": 0, "L1": 1, "L2": 2}[_norm(attributes)]
    size = np.linalg.norm(x, order, -1, keepdims=True) if order else x.max(-1, keepdims=True)
    return x / np.where(size == 0, 1, size)


def _normalizer_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((5,), (4, 3)):
        for norm in ("MAX", "L1", "L2"):
            yield TestCase(f"{list(shape)} {norm}", (random.uniform(0.5, 2, shape),), {"norm": norm})
    x = random.standard_normal((3, 4))
    x[1] = 0
    for norm in ("MAX", "L1", "L2"):
        yield TestCase(f"a row of zeros {norm}", (x,), {"norm": norm}, smooth=False)


_ML = "ai.onnx.ml"
scaler = Op(
    "Scaler",
    domain=_ML,
    reference=_scaler_reference,
    decompose=_scaler_body,
    decomposes_to=("Cast", "Mul", "Sub"),
    cases=_scaler_cases,
)
binarizer = Op(
    "Binarizer",
    domain=_ML,
    reference=_binarizer_reference,
    decompose=_binarizer_body,
    decomposes_to=("Cast", "Greater"),
    differentiable=frozenset(),
    cases=_binarizer_cases,
)
normalizer = Op(
    "Normalizer",
    domain=_ML,
    reference=_normalizer_reference,
    decompose=_normalizer_body,
    decomposes_to=("Abs", "Cast", "Div", "Equal", "Mul", "ReduceMax", "ReduceSum", "Sqrt", "Where"),
    cases=_normalizer_cases,
)

OPS = (scaler, binarizer, normalizer)
