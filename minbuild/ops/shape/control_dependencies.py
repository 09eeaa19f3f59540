"""Group and PassThrough: they order other nodes and compute nothing, so nothing of them reaches the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import BOOL, Op, OpContext, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results


def _group_infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(BOOL, (1,)),)


def _group_known(ctx: OpContext) -> Sequence[np.ndarray]:
    return (np.array([True]),)


def _pass_body(b: GraphBuilder) -> Results:
    return b.x[: len(b.y)]


def _pass_reference(attributes: Mapping[str, Any], *values: np.ndarray) -> tuple[np.ndarray, ...]:
    return values


def _pass_cases(random: np.random.Generator) -> Iterable[TestCase]:
    inputs = (random.standard_normal((2, 3)), random.standard_normal(4))
    yield TestCase("two values", inputs, outputs=2, ulps=0)


def _pass_gradient(b: GradientBuilder) -> Results:
    """A truth value behind what is passed on says whether gradients flow (frontend/onnx/unroll.py)."""
    count = len(b.dy)
    if len(b.x) == count or b.ctx.element(count) is not BOOL:
        return tuple(b.dy)
    return tuple(b.where(b.x[count], dy, 0) if dy else None for dy in b.dy)


group = Op("Group", domain="com.microsoft", infer=_group_infer, shape_value=_group_known)
pass_through = Op(
    "PassThrough",
    domain="com.microsoft",
    reference=_pass_reference,
    decompose=_pass_body,
    cases=_pass_cases,
    gradient=_pass_gradient,
    differentiable=frozenset(range(64)),
)

OPS = (group, pass_through)
