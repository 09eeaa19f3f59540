"""Group and PassThrough: they order other nodes and compute nothing, so nothing of them reaches the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import BOOL, Case, Op, Site
from minbuild.ops.core.graph_builder import Backward, Body


def _group_infer(site: Site) -> Sequence[TensorType]:
    return (TensorType(BOOL, (1,)),)


def _group_known(site: Site) -> Sequence[np.ndarray]:
    return (np.array([True]),)


def _pass_body(b: Body) -> Sequence[str]:
    return b.x[: len(b.y)]


def _pass_reference(attributes: Mapping[str, Any], *values: np.ndarray) -> tuple[np.ndarray, ...]:
    return values


def _pass_cases(random: np.random.Generator) -> Iterable[Case]:
    inputs = (random.standard_normal((2, 3)), random.standard_normal(4))
    yield Case("two values", inputs, outputs=2, ulps=0)


def _pass_gradient(b: Backward) -> Sequence[str]:
    return b.each(*b.dy)


group = Op("Group", domain="com.microsoft", infer=_group_infer, known=_group_known)
pass_through = Op(
    "PassThrough",
    domain="com.microsoft",
    reference=_pass_reference,
    body=_pass_body,
    cases=_pass_cases,
    gradient=_pass_gradient,
    differentiable=frozenset(range(64)),
)
