"""GlobalAveragePool: the mean over all spatial axes, by the kernel of ReduceMean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase, first_input
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results
from minbuild.ops.reduction.reduce import reduce_kernel, reduce_over


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    shape = ctx.shape()
    return (TensorType(ctx.element(), shape[:2] + (1,) * (len(shape) - 2)),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return x.mean(tuple(range(2, x.ndim)), keepdims=True)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    tensor = TensorType(ctx.element(), ctx.shape())
    return (reduce_over(ctx.result(), ctx.name(0), tensor, range(2, ctx.rank()), mean=True),)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((1, 1, 1, 1), (2, 3, 5), (3, 4, 7, 7), (1, 6, 8, 8), (2, 3, 2, 3, 4)):
        yield TestCase(f"{list(shape)}", (random.standard_normal(shape),), ulps=16)


def _gradient(b: GradientBuilder) -> Results:
    """The gradient of a mean: dy divided by the number of elements, everywhere."""
    count = product(b.ctx.shape()[2:])
    if isinstance(count, int):
        share = b.dy[0] * (1 / max(count, 1))
    else:
        elements, means = (n.size().cast(b.ctx.element()) for n in (b.x[0], b.y[0]))
        share = b.microsoft("Scale", b.dy[0], elements / means, scale_down=1)
    return share.expand_like(b.x[0])


global_average_pool = Op(
    "GlobalAveragePool",
    since=(1, 22),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(reduce_kernel,),
    batched_inputs=first_input,
    cases=_cases,
    gradient=_gradient,
)

OPS = (global_average_pool,)
