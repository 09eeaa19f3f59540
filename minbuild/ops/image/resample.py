"""Resample: weighted sums of elements along one axis, by a table that is known when the trainer is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import (
    FLOAT,
    FLOATS,
    HALVES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

resample_kernel = KernelFunction(
    "resample", ("y:T=", "x:T", "indices:int32", "weights:T", "groups:extent"), types={"T": FLOATS}
)


@dataclass(frozen=True, eq=False)
class Table:
    """Which elements of an axis of `size` every output is made of, and with which weights: both [outputs, taps].
    Rows of fewer taps are filled up with weights of zero."""

    size: int
    indices: np.ndarray
    weights: np.ndarray

    @property
    def matrix(self) -> np.ndarray:
        """The weights as [outputs, size]."""
        dense = np.zeros((len(self.indices), self.size))
        np.add.at(dense, (np.arange(len(self.indices))[:, None], self.indices), self.weights)
        return dense

    @classmethod
    def of(cls, matrix: np.ndarray) -> Table:
        """The table of a matrix of weights, [outputs, size]."""
        taps = max(1, int(np.count_nonzero(matrix, 1).max(initial=0)))
        indices = np.argsort(matrix == 0, axis=1, kind="stable")[:, :taps]
        return cls(matrix.shape[1], indices, np.take_along_axis(matrix, indices, 1))

    def transposed(self) -> Table:
        """The table of the gradient."""
        return Table.of(self.matrix.T)


def add_resample(b: GraphBuilder, x: Value, axis: int, table: Table) -> Value:
    """A node that resamples `x` along `axis`. Halves keep weights in float. `b` is the graph, `table` has indices and
    weights per element of the result."""
    element = b.ctx.element()
    weights = b.constant(table.weights, FLOAT if element in HALVES else element)
    indices = b.constant(table.indices, ElementType.INT32)
    return b.add("Resample", x, indices, weights, domain="minbuild", axis=axis)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    shape, axis = ctx.shape(), ctx.axis()
    return (TensorType(ctx.element(), (*shape[:axis], ctx.shape(1)[0], *shape[axis + 1 :])),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    shape, axis = ctx.shape(), ctx.axis()
    groups = (product(shape[:axis]), shape[axis], product(shape[axis + 1 :]))
    return (
        resample_kernel.call(
            ctx.result(),
            ctx.name(0),
            ctx.name(1),
            ctx.name(2),
            TensorType(ctx.element(), groups),
            types=(ctx.element(),),
        ),
    )


def _reference(
    attributes: Mapping[str, Any], x: np.ndarray, indices: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    axis = attributes["axis"]
    matrix = Table(x.shape[axis], indices, weights).matrix
    return np.moveaxis(np.tensordot(x, matrix, (axis, 1)), -1, axis)


def _gradient(b: GradientBuilder) -> Results:
    indices, weights = b.ctx.content(1), b.ctx.content(2)
    size = b.ctx.shape()[b.ctx.axis()]
    if indices is None or weights is None or not isinstance(size, int):
        raise UnsupportedUse("its table must be known when the trainer is built")
    return add_resample(b, b.dy[0], b.ctx.axis(), Table(size, indices, weights).transposed())


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axis, outputs, taps in (
        ((5,), 0, 3, 2),
        ((2, 4, 6), 1, 7, 3),
        ((2, 4, 6), 2, 1, 6),
        ((3, 5, 2, 9), 2, 4, 1),
        ((3, 33), 0, 5, 2),
    ):
        indices = random.integers(0, shape[axis], (outputs, taps)).astype(np.int32)
        weights = random.standard_normal((outputs, taps))
        weights[0, -1] = 0
        inputs = (random.standard_normal(shape), indices, weights)
        yield TestCase(f"{list(shape)} axis {axis}", inputs, {"axis": axis}, frozenset({1, 2}), ulps=16)


resample = Op(
    "Resample",
    domain="minbuild",
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(resample_kernel,),
    gradient=_gradient,
    cases=_cases,
)

KERNELS = (resample_kernel,)
OPS = (resample,)
