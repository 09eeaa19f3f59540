"""GatherPieces, which `passes/rewrite/join_pieces.py` writes: pieces of tensors along an axis put together, each copied
once, or added to a gradient's buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import FLOATS, KernelCall, KernelFunction, Op, OpContext, TestCase

piece_kernel = KernelFunction(
    "gather_piece",
    ("y:T=", "x:T", "place:extent"),
    params=("start:int", "to:int", "size:int"),
    types={"T": FLOATS},
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    axis, shape = ctx.axis(), ctx.shape()
    return (TensorType(ctx.element(), (*shape[:axis], sum(ctx.attribute("sizes")), *shape[axis + 1 :])),)


def _reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> np.ndarray:
    axis, starts, sizes = (attributes[name] for name in ("axis", "starts", "sizes"))
    places = zip(inputs, starts, sizes, strict=True)
    return np.concatenate([np.take(x, range(start, start + n), axis) for x, start, n in places], axis)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    axis, shape, calls, to = ctx.axis(), ctx.shape(), [], 0
    place = TensorType(ElementType.UINT8, (product(shape[:axis]), product(shape[axis + 1 :])))
    for name, start, size in zip(ctx.names, ctx.attribute("starts"), ctx.attribute("sizes"), strict=True):
        calls.append(
            piece_kernel.call(
                *(ctx.result(), name, place),
                types=(ctx.element(),),
                params=(start, to, size),
                accumulate=ctx.accumulate,
            )
        )
        to += size
    return calls


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shapes, axis, starts, sizes in (
        (((8,), (8,), (8,)), 0, (0, 6, 2), (2, 2, 4)),
        (((3, 9), (3, 4)), 1, (4, 0), (5, 4)),
        (((2, 5, 3), (2, 7, 3), (2, 5, 3)), 1, (4, 1, 0), (1, 3, 4)),
        (((131, 7, 300), (131, 7, 300), (131, 7, 300)), 1, (0, 6, 1), (1, 1, 5)),
    ):
        inputs = tuple(random.standard_normal(shape) for shape in shapes)
        attributes = {"axis": axis, "starts": starts, "sizes": sizes}
        yield TestCase(f"{list(shapes[0])} axis {axis}, {list(sizes)}", inputs, attributes, ulps=0)


gather_pieces = Op(
    "GatherPieces",
    domain="minbuild",
    infer=_infer,
    reference=_reference,
    lower=_lower,
    accumulates=frozenset({0}),
    kernels=(piece_kernel,),
    cases=_cases,
)

KERNELS = (piece_kernel,)
OPS = (gather_pieces,)
