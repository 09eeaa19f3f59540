"""Copy: own bytes for a value that would otherwise be a view of an input of the caller or of a variable that changes.
Assign: a variable takes a new value, as the update bindings of ONNX's training information define."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
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
from minbuild.ops.shape.fill import call_fill, fill_kernel

COPY = "minbuild:Copy"

copy_kernel = KernelFunction("copy", ("y:T=", "x:T"), types={"T": STORAGE_TYPES})


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return (copy_kernel.call(ctx.result(), ctx.name(0), types=(storage_type(ctx.element()),)),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return x.copy()


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (7,), (2, 3, 5)):
        for dtype in (np.float64, np.int8, np.int16, np.uint32, np.bool_):
            x = random.integers(0, 2, shape).astype(dtype)
            yield TestCase(f"{np.dtype(dtype)} {list(shape)}", (x,), ulps=0)


copy = Op(
    "Copy",
    domain="minbuild",
    infer=same_as(0),
    reference=_reference,
    lower=_lower,
    kernels=(copy_kernel,),
    cases=_cases,
)


def _assigned(ctx: OpContext) -> Sequence[TensorType]:
    variable, value = ctx.inputs[:2]
    assert variable is not None and value is not None
    if variable != value:
        raise UnsupportedUse(f"the new value is {_text(value)}, but the variable is {_text(variable)}")
    return (variable,)


def _text(tensor: TensorType) -> str:
    return f"{tensor.element.label}[{', '.join(map(str, tensor.shape or ()))}]"


def _new_value(attributes: Mapping[str, Any], variable: np.ndarray, value: np.ndarray) -> np.ndarray:
    return value


def _overwrite(ctx: OpContext) -> Sequence[KernelCall]:
    """A constant that repeats one element is filled in by the kernel instead of being stored in the plan."""
    content = ctx.content(1)
    if content is not None and content.size > 1 and content.dtype != object:
        raw = np.ascontiguousarray(content).reshape(-1).view(f"V{content.itemsize}")
        if (raw == raw[0]).all():
            return (call_fill(ctx.name(0), ctx.element(), content.flat[0]),)
    call = copy_kernel.call(ctx.name(0), ctx.name(1), types=(storage_type(ctx.element()),))
    return (call,)


def _assignments(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (7,), (2, 3, 5)):
        for dtype in (np.float64, np.int64, np.bool_):
            old, new = (random.integers(0, 2, shape).astype(dtype) for _ in range(2))
            yield TestCase(f"{np.dtype(dtype)} {list(shape)}", (old, new), ulps=0)
            known = frozenset({1})
            yield TestCase(f"{np.dtype(dtype)} {list(shape)}, known", (old, new), constant=known, ulps=0)
            alike = np.full(shape, new.flat[0])
            yield TestCase(
                f"{np.dtype(dtype)} {list(shape)}, all alike", (old, alike), constant=known, ulps=0
            )


assign = Op(
    "Assign",
    domain="minbuild",
    infer=_assigned,
    reference=_new_value,
    lower=_overwrite,
    kernels=(copy_kernel, fill_kernel),
    mutates={0: 0},
    cases=_assignments,
)

KERNELS = (copy_kernel,)
OPS = (copy, assign)
