"""Trilu: one triangle of matrices, of ONNX and of ONNX Runtime's own domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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

trilu_kernel = KernelFunction(
    "trilu",
    ("y:T=", "x:T", "layout:extent"),
    params=("diagonal:int", "upper:int"),
    types={"T": STORAGE_TYPES},
)


def _diagonal(ctx: OpContext) -> int:
    if not ctx.has(1):
        return 0
    (k,) = ctx.dims(1)
    if not isinstance(k, int):
        raise UnsupportedUse("its diagonal must be a number, not the size of an input")
    return min(max(k, -(2**31)), 2**31 - 1)


def call_triangle(y: str, x: str, tensor: TensorType, diagonal: int, upper: bool) -> KernelCall:
    """One triangle of `x`, a tensor of this type, in `y`, which may be `x`. `tensor` is that type; `diagonal` counts
    from the main one upwards, and all above it is kept with `upper`, below without."""
    assert tensor.shape is not None
    *outer, rows, columns = tensor.shape
    return trilu_kernel.call(
        y,
        x,
        TensorType(ElementType.UINT8, (product(outer), rows, columns)),
        types=(storage_type(tensor.element),),
        params=(diagonal, upper),
    )


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    tensor, upper = ctx.results[0], bool(ctx.attribute("upper", 1))
    assert tensor is not None
    return (call_triangle(ctx.result(), ctx.name(0), tensor, _diagonal(ctx), upper),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray, k: np.ndarray | None = None) -> np.ndarray:
    diagonal = 0 if k is None else int(k.reshape(()).item())
    limit = sum(x.shape[-2:])  # no diagonal is farther away
    part = np.triu if attributes.get("upper", 1) else np.tril
    return np.asarray(part(x, min(max(diagonal, -limit), limit)))


def _gradient(b: GradientBuilder) -> Results:
    """Elements that are kept pass their gradients on."""
    return b.microsoft("Trilu", b.dy[0], *b.x[1:], upper=int(b.ctx.attribute("upper", 1)))


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((1, 1), (3, 3), (4, 7), (7, 4), (2, 3, 5, 4)):
        for upper in (0, 1):
            x = random.standard_normal(shape)
            yield TestCase(f"{list(shape)} upper {upper}", (x,), {"upper": upper}, ulps=0)
            for k in (-2, 1, 3, 2**40, -(2**40)):
                name = f"{list(shape)} upper {upper} from {k}"
                yield TestCase(name, (x, np.array(k)), {"upper": upper}, frozenset({1}), ulps=0)
    bits = random.integers(0, 2, (2, 4, 4))
    for dtype in (np.bool_, np.int8, np.float16, np.int32, np.int64):
        yield TestCase(f"of {np.dtype(dtype)}", (bits.astype(dtype),), ulps=0)


trilu = Op(
    "Trilu",
    since=(14,),
    infer=same_as(0),
    reference=_reference,
    lower=_lower,
    kernels=(trilu_kernel,),
    in_place=((0, 0),),
    cases=_cases,
    gradient=_gradient,
)
trilu_microsoft = replace(trilu, domain="com.microsoft", since=(1,))

KERNELS = (trilu_kernel,)
OPS = (trilu, trilu_microsoft)
