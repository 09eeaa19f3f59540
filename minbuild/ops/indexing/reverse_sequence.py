"""ReverseSequence: sequences of different lengths, each reversed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import (
    STORAGE_TYPES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    same_as,
    storage_type,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results

reverse_kernel = KernelFunction(
    "reverse_sequence",
    ("y:T=", "x:T", "lengths:int64", "layout:extent"),
    params=("batch_first:int",),
    types={"T": STORAGE_TYPES},
)


def _batch_first(attributes: Mapping[str, Any]) -> bool:
    batch, time = attributes.get("batch_axis", 1), attributes.get("time_axis", 0)
    if {batch, time} != {0, 1}:
        raise UnsupportedUse(f"batch axis {batch} and time axis {time} are not the first two")
    return bool(batch == 0)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    shape = ctx.shape()
    call = reverse_kernel.call(
        ctx.result(),
        ctx.name(0),
        ctx.name(1),
        TensorType(ElementType.UINT8, (*shape[:2], product(shape[2:]))),
        types=(storage_type(ctx.element()),),
        params=(_batch_first(ctx.attributes),),
    )
    return (call,)


def _reference(attributes: Mapping[str, Any], x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    sequences = x.copy() if _batch_first(attributes) else x.swapaxes(0, 1).copy()
    for sequence, length in zip(sequences, lengths.tolist(), strict=True):
        sequence[:length] = sequence[:length][::-1].copy()
    return sequences if _batch_first(attributes) else sequences.swapaxes(0, 1)


def _gradient(b: GradientBuilder) -> Results:
    """Reversed once more."""
    return b.add("ReverseSequence", b.dy[0], b.x[1], **b.ctx.attributes)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for attributes in ({}, {"batch_axis": 0, "time_axis": 1}):
        for times, batches, rest in ((1, 1, ()), (5, 3, ()), (4, 2, (3,)), (3, 4, (2, 5))):
            shape = (batches, times, *rest) if attributes else (times, batches, *rest)
            lengths = random.integers(0, times + 1, batches)
            for dtype in (np.float64, np.int8, np.int64):
                x = (random.standard_normal(shape) * 9).astype(dtype)
                name = f"{list(shape)} {lengths.tolist()} {np.dtype(dtype)} {attributes}"
                yield TestCase(name, (x, lengths), attributes, ulps=0)


reverse_sequence = Op(
    "ReverseSequence",
    since=(10, 28),
    infer=same_as(0),
    reference=_reference,
    lower=_lower,
    kernels=(reverse_kernel,),
    cases=_cases,
    gradient=_gradient,
)

KERNELS = (reverse_kernel,)
OPS = (reverse_sequence,)
