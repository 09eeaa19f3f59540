"""Optional values: refused where presence follows from data; those that the frontend leaves otherwise are tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import BOOL, Op, OpContext, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results


def _has_infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(BOOL, ()),)


def _has_content(ctx: OpContext) -> Sequence[np.ndarray | None]:
    return (np.array(ctx.has(0)),)


def _made(b: GraphBuilder) -> Results:
    if b.has(0):
        return b.add("Identity", b.x[0])
    raise UnsupportedUse(
        "it makes an optional value without a tensor where other branches, or other rounds of a loop, may make one "
        "with a tensor: which it is depends on data, but must be known when the trainer is built. Give a tensor in "
        "every case, such as zeros of the same shape, and beside it a truth value that says if it counts"
    )


def _same(b: GraphBuilder) -> Results:
    if b.has(0):
        return b.add("Identity", b.x[0])
    raise UnsupportedUse(
        "it takes the tensor of an optional value that never has one. Take it in a branch of an If on "
        "OptionalHasElement, or give the value a tensor"
    )


def _element(attributes: Any, x: np.ndarray) -> np.ndarray:
    return x


optional = Op("Optional", since=(15,), reference=_element, decompose=_made, decomposes_to=("Identity",))

has_element = Op("OptionalHasElement", since=(15, 18), infer=_has_infer, shape_value=_has_content)
get_element = Op(
    "OptionalGetElement", since=(15, 18), reference=_element, decompose=_same, decomposes_to=("Identity",)
)

OPS = (optional, has_element, get_element)
