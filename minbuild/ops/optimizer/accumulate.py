"""InPlaceAccumulator and InPlaceAccumulatorV2, which add gradients to their buffers, and ZeroGradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import (
    ELEMENTS,
    FLOATS,
    HALVES,
    STORAGE_TYPES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    same_as,
    storage_type,
)
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results
from minbuild.ops.movement import copy as _copy
from minbuild.ops.optimizer.update_rules import updated_flag

_TYPES = {"T": FLOATS + HALVES}
accumulate_kernel = KernelFunction("accumulate", ("buffer:T=", "value:T"), types=_TYPES, cut=ELEMENTS)
add_kernel = KernelFunction("add_in_place", ("buffer:T=", "value:T"), types=_TYPES, cut=ELEMENTS)
clear_kernel = KernelFunction("clear", ("buffer:T=",), types={"T": STORAGE_TYPES})


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    # The buffer is input 0 of the node and output 0 of the kernel, which the accumulate pass sees to.
    return (accumulate_kernel.call(ctx.result(), ctx.name(0), types=(ctx.element(),), accumulate=1),)


# ------------------------------------------------------- buffers that the model itself names and hands on


def _first_body(b: GraphBuilder) -> Results:
    """A value of another type is converted, and counts as 0 where the signal says so."""
    element, value = b.ctx.element(), b.x[1]
    if b.ctx.element(1) is not element:
        value = value.cast(element)
    if b.has(2):
        value = b.where(b.x[2], value, 0)
    return None if value == b.x[1] else (b.microsoft("InPlaceAccumulator", b.x[0], value),)


def _lower_first(ctx: OpContext) -> Sequence[KernelCall]:
    """The result shares the buffer's bytes, unless that is a constant."""
    copies = ctx.content(0) is not None
    types = (ctx.element(),)
    copy = _copy.copy_kernel.call(ctx.result(), ctx.name(0), types=(storage_type(ctx.element()),))
    return (*(copy,) * copies, add_kernel.call(ctx.result(), ctx.name(1), types=types))


def _first_reference(
    attributes: Mapping[str, Any], buffer: np.ndarray, value: np.ndarray, signal: np.ndarray | None = None
) -> np.ndarray:
    return np.asarray(buffer + value if signal is None or signal.all() else buffer)


def _first_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((1,), (7,), (3, 5)):
        buffer, value = random.standard_normal((2, *shape))
        yield TestCase(f"{list(shape)}", (buffer, value), ulps=1)
        for signal in (True, False):
            yield TestCase(f"{list(shape)}, signal {signal}", (buffer, value, np.array([signal])), ulps=1)
    yield TestCase("constant buffer", (buffer, value), constant=frozenset({0}), ulps=1)


def _lower_zero(ctx: OpContext) -> Sequence[KernelCall]:
    return (clear_kernel.call(ctx.result(), types=(storage_type(ctx.element()),)),)


def _zero_reference(attributes: Mapping[str, Any], buffer: np.ndarray, signal: np.ndarray) -> np.ndarray:
    return np.zeros_like(buffer)


def _zero_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((1,), (7,), (3, 5)):
        yield TestCase(f"{list(shape)}", (random.standard_normal(shape), np.array([True])), ulps=0)


accumulator = Op("InPlaceAccumulatorV2", domain="com.microsoft", infer=updated_flag, mutates={0: None})
# What the accumulate pass leaves where the kernel that makes a gradient cannot add it to the buffer itself.
add_to_gradient = Op(
    "AddToGradient",
    domain="minbuild",
    infer=same_as(),
    lower=_lower,
    kernels=(accumulate_kernel,),
)
first_accumulator = Op(
    "InPlaceAccumulator",
    domain="com.microsoft",
    infer=same_as(0),
    reference=_first_reference,
    lower=_lower_first,
    kernels=(add_kernel, _copy.copy_kernel),
    mutates={0: 0},
    decompose=_first_body,
    decomposes_to=("Where",),
    cases=_first_cases,
)
zero_gradient = Op(
    "ZeroGradient",
    domain="com.microsoft",
    infer=same_as(0),
    reference=_zero_reference,
    lower=_lower_zero,
    kernels=(clear_kernel,),
    mutates={0: 0},
    cases=_zero_cases,
)

KERNELS = (accumulate_kernel, add_kernel, clear_kernel)
OPS = (accumulator, add_to_gradient, first_accumulator, zero_gradient)
