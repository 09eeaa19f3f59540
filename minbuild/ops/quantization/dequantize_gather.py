"""DequantizeGather: rows of a table of weights that stay in 4, 8 or 16 bits, dequantized as they are taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ops.core.definition import FLOAT, KernelCall, Op, OpContext, TestCase
from minbuild.ops.quantization.dequantize import OWN, Format, formats, gather_kernel, operands

DEQUANTIZE_GATHER = "minbuild:DequantizeGather"
_INDICES = 4  # the input behind codes, scales, zero points and table


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    row = tuple(int(d) for d in ctx.attributes["shape"])[1:]
    return (TensorType(ElementType(ctx.attribute("to", int(FLOAT))), (*ctx.shape(_INDICES), *row)),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    stored, result, names = Format.of(ctx.attributes), ctx.results[0], operands(ctx)
    assert result is not None
    call = gather_kernel.call(
        ctx.result(),
        *names,
        ctx.name(_INDICES),
        types=(result.element, ctx.element(_INDICES)),
        params=(stored.rows, *stored.params()),
        features=stored.features(bool(names[2]), bool(names[3])),
    )
    return (call,)


def _reference(
    attributes: Mapping[str, Any],
    codes: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray | None,
    table: np.ndarray | None,
    indices: np.ndarray,
) -> np.ndarray:
    values = Format.of(attributes).values(codes, scale, zero, table)
    return values.reshape(attributes["shape"])[indices.astype(np.int64)]


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for rows, shape, dtype in ((5, (7,), np.int64), (9, (2, 3, 14), np.int32)):
        columns = int(np.prod(shape))
        for name, stored, inputs in formats(random, rows, columns):
            indices = random.integers(-rows, rows, (3, 2)).astype(dtype)
            attributes = {**stored.attributes, "shape": (rows, *shape)}
            title, constant = f"{rows} x {columns}, {name}", frozenset(range(_INDICES))
            yield TestCase(title, (*inputs, indices), attributes, constant, ulps=1, smooth=False)


dequantize_gather = Op(
    "DequantizeGather",
    domain=OWN,
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(gather_kernel,),
    cases=_cases,
)

OPS = (dequantize_gather,)
