"""Det: determinants of stacks of square matrices, and their gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ops.core.definition import (
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    same_as,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results

det_kernel = KernelFunction("det", ("y:T=", "x:T", "room:scratch"), types={"T": FLOATS})
grad_kernel = KernelFunction("det_grad", ("dx:T=", "dy:T", "x:T", "room:scratch"), types={"T": FLOATS})


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    shape = ctx.shape()
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise UnsupportedUse(f"{list(shape)} is no stack of square matrices")
    return (TensorType(ctx.element(), shape[:-2]),)


def _room(ctx: OpContext, x: int) -> TensorType:
    """For one matrix."""
    size = ctx.shape(x)[-1]
    return TensorType(ElementType.UINT8, (size * size * ctx.element().size,))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return (det_kernel.call(ctx.result(), ctx.name(0), _room(ctx, 0), types=(ctx.element(),)),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return np.linalg.det(x)


def _matrices(random: np.random.Generator) -> Iterable[tuple[str, np.ndarray]]:
    for shape in ((1, 1), (2, 2), (5, 5), (3, 4, 4), (2, 3, 3, 3)):
        yield str(list(shape)), random.standard_normal(shape)
    yield "row of zeros", np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [4.0, 5.0, 7.0]])
    yield "zeros on the diagonal", np.array([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0], [1.0, 1.0, 0.0]])


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, x in _matrices(random):
        yield TestCase(name, (x,), ulps=64)


def _gradient(b: GradientBuilder) -> Results:
    return b.add("DetGrad", b.dy[0], b.x[0], domain="minbuild")


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    arguments = (ctx.result(), ctx.name(0), ctx.name(1), _room(ctx, 1))
    return (grad_kernel.call(*arguments, types=(ctx.element(),)),)


def _grad_reference(attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """By cofactors: determinants without a row and a column, with alternating signs."""
    size = x.shape[-1]
    dx = np.empty_like(x)
    for row in range(size):
        for column in range(size):
            minor = np.delete(np.delete(x, row, axis=-2), column, axis=-1)
            dx[..., row, column] = (-1) ** (row + column) * np.linalg.det(minor) * dy
    return dx


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, x in _matrices(random):
        yield TestCase(name, (random.standard_normal(x.shape[:-2]), x), ulps=64)


det = Op(
    "Det",
    since=(11, 22),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(det_kernel,),
    cases=_cases,
    gradient=_gradient,
)
det_grad = Op(
    "DetGrad",
    domain="minbuild",
    infer=same_as(1),
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(grad_kernel,),
    cases=_grad_cases,
)

KERNELS = (det_kernel, grad_kernel)
OPS = (det, det_grad)
