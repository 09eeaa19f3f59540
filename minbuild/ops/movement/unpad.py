"""FlattenAndUnpad and PadAndUnflatten of ONNX Runtime: the rows of a padded batch that count, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import INT64, Op, OpContext, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

# FlattenAndUnpad(x: [B,S,...], indices: [N]) -> rows: [N,...], [B,S]
# PadAndUnflatten(rows: [N,...], indices: [N], [B,S]) -> y: [B,S,...], zero where no index points


def _flat(b: GraphBuilder, x: Value) -> Value:
    """The first two axes as one."""
    rest = b.add("Slice", x.shape(), b.integers([2]), b.integers([2**31 - 1]))
    return b.add("Reshape", x, b.add("Concat", b.integers([-1]), rest, axis=0))


def _unpad_body(b: GraphBuilder) -> Results:
    rows = b.add("Gather", _flat(b, b.x[0]), b.x[1], axis=0)
    return rows, b.add("Slice", b.x[0].shape(), b.integers([0]), b.integers([2]))


def _unpad_reference(
    attributes: Mapping[str, Any], x: np.ndarray, indices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    rows = x.reshape(-1, *x.shape[2:])[indices]
    return rows, np.array(x.shape[:2], np.int64)


def _unpad_gradient(b: GradientBuilder) -> Results:
    dims = b.add("Slice", b.x[0].shape(), b.integers([0]), b.integers([2]))
    return b.microsoft("PadAndUnflatten", b.dy[0], b.x[1], dims)


def _unpad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, count in (((2, 3), 4), ((3, 4, 5), 7), ((2, 2, 3, 2), 1)):
        rows = random.permutation(shape[0] * shape[1])[:count]
        inputs = (random.standard_normal(shape), np.sort(rows))
        yield TestCase(f"{list(shape)} {count} rows", inputs, outputs=2, ulps=0)


flatten_and_unpad = Op(
    "FlattenAndUnpad",
    domain="com.microsoft",
    reference=_unpad_reference,
    decompose=_unpad_body,
    decomposes_to=("Concat", "Gather", "Slice"),
    cases=_unpad_cases,
    gradient=_unpad_gradient,
)


def _pad_body(b: GraphBuilder) -> Results:
    """Rows written into zeros."""
    rest = b.add("Slice", b.x[0].shape(), b.integers([1]), b.integers([2**31 - 1]))
    shape = b.add("Concat", b.x[2], rest, axis=0)
    zeros = b.add("ConstantOfShape", shape, value=np.zeros(1, b.ctx.element().dtype))
    places = (b.x[1] if _is_wide(b.ctx) else b.x[1].cast(INT64)).unsqueeze((1,))
    return b.add("Reshape", b.add("ScatterND", _flat(b, zeros), places, b.x[0]), shape)


def _is_wide(ctx: OpContext) -> bool:
    return ctx.element(1) == INT64


def _pad_reference(
    attributes: Mapping[str, Any], rows: np.ndarray, indices: np.ndarray, dims: np.ndarray
) -> np.ndarray:
    y = np.zeros((int(np.prod(dims)), *rows.shape[1:]), rows.dtype)
    y[indices] = rows
    return y.reshape(*(int(d) for d in dims), *rows.shape[1:])


def _pad_gradient(b: GradientBuilder) -> Results:
    return b.many(2, "FlattenAndUnpad", b.dy[0], b.x[1], domain="com.microsoft")[0]


def _pad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for case in _unpad_cases(random):
        x, indices = case.inputs
        assert x is not None and indices is not None
        rows, dims = _unpad_reference({}, x, indices)
        for dtype in (np.int64, np.int32):
            name = f"{case.name} {np.dtype(dtype)}"
            yield TestCase(name, (rows, indices.astype(dtype), dims), constant=frozenset({2}), ulps=0)


pad_and_unflatten = Op(
    "PadAndUnflatten",
    domain="com.microsoft",
    reference=_pad_reference,
    decompose=_pad_body,
    decomposes_to=("Cast", "Concat", "ConstantOfShape", "ScatterND", "Slice"),
    cases=_pad_cases,
    gradient=_pad_gradient,
)

OPS = (flatten_and_unpad, pad_and_unflatten)
