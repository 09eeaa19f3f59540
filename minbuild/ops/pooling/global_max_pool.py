"""GlobalMaxPool: the largest element over all spatial axes, by the kernel of ReduceMax."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import Op, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results


def _body(b: GraphBuilder) -> Results:
    return b.x[0].max(range(2, b.ctx.rank()))


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return x.max(tuple(range(2, x.ndim)), keepdims=True)


def _gradient(b: GradientBuilder) -> Results:
    """Elements that tie share the gradient equally."""
    axes = range(2, b.ctx.rank())
    largest = b.x[0].equal(b.y[0]).cast(b.ctx.element())
    share = b.dy[0] / largest.sum(axes)
    return largest * share


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((1, 1, 1, 1), (2, 3, 5), (3, 4, 7, 7), (2, 3, 2, 3, 4)):
        x = random.standard_normal(shape)
        yield TestCase(f"{list(shape)}", (x,), ulps=0)
        yield TestCase(f"{list(shape)} ties", (x.round(),), ulps=0, smooth=False)


global_max_pool = Op(
    "GlobalMaxPool",
    since=(1, 22),
    decompose=_body,
    decomposes_to=("ReduceMax",),
    reference=_reference,
    gradient=_gradient,
    cases=_cases,
)

OPS = (global_max_pool,)
