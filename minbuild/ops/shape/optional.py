"""Optional values that are tensors: there or not, which the graph says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import BOOL, Op, OpContext
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results


def _has_infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(BOOL, ()),)


def _has_content(ctx: OpContext) -> Sequence[np.ndarray | None]:
    return (np.array(ctx.has(0)),)


def _same(b: GraphBuilder) -> Results:
    return b.add("Identity", b.x[0])


def _element(attributes: Any, x: np.ndarray) -> np.ndarray:
    return x


has_element = Op("OptionalHasElement", since=(15, 18), infer=_has_infer, shape_value=_has_content)
get_element = Op(
    "OptionalGetElement", since=(15, 18), reference=_element, decompose=_same, decomposes_to=("Identity",)
)

OPS = (has_element, get_element)
