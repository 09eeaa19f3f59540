"""Split, also as ORT's gradients use it: one copy for every piece."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ir.dims import Dim, ceil_div
from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase, UnsupportedUse, require_equal
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.pattern import Rewrite, RewritingOp, identity
from minbuild.ops.core.value import Results, Value
from minbuild.ops.movement import concat as _concat

MANY = frozenset(range(1024))  # outputs


def _sizes(ctx: OpContext) -> tuple[Dim, ...]:
    """The sizes asked for: input 1, an attribute, or equal shares, the last of them perhaps smaller."""
    if ctx.has(1):
        return ctx.dims(1)
    if ctx.attribute("split") is not None:
        return tuple(ctx.attribute("split"))
    whole, count = ctx.shape()[ctx.axis(0)], int(ctx.attribute("num_outputs", 0))
    if not count:
        raise UnsupportedUse("the number of equal parts is not given; name the sizes in input 'split'")
    share = ceil_div(whole, count)
    return (share,) * (count - 1) + (whole - share * (count - 1),)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    axis, shape = ctx.axis(0), ctx.shape()
    sizes = _sizes(ctx)
    text = f"axis {axis} of {list(shape)} cannot be split into {list(sizes)}"
    require_equal(shape[axis], sum(sizes, 0), text)
    return [TensorType(ctx.element(), shape[:axis] + (s,) + shape[axis + 1 :]) for s in sizes]


def _reference(attributes: Mapping[str, Any], x: np.ndarray, split: np.ndarray | None = None) -> Any:
    axis = attributes.get("axis", 0)
    sizes = attributes.get("split") if split is None else split.tolist()
    if sizes is None:
        share = -(-x.shape[axis] // attributes["num_outputs"])
        sizes = (share,) * int(attributes["num_outputs"])
    ends = [min(sum(sizes[: i + 1]), x.shape[axis]) for i in range(len(sizes))]
    return tuple(np.split(x, ends[:-1], axis))


def _counted(b: GraphBuilder) -> Results:
    """Where nothing says into how many parts, into as many as the node has outputs."""
    if b.has(1) or b.ctx.attribute("split") is not None or b.ctx.attribute("num_outputs"):
        return None
    count, axis = len(b.y), int(b.ctx.attribute("axis", 0))
    return b.many(count, "Split", b.x[0], axis=axis, num_outputs=count)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    places = _concat.pieces(_sizes(ctx), ctx.shape(), ctx.axis(0))
    return [
        _concat.call_piece(name, ctx.name(0), place, ctx.element(), out=True)
        for name, place in zip(ctx.result_names, places, strict=False)
        if name
    ]


def _gradient(b: GradientBuilder) -> Results:
    """The pieces put together, zeros for those that nothing depends on."""
    pieces = [dy or _zeros(b, i) for i, dy in enumerate(b.dy)]
    return b.add("Concat", *pieces, axis=int(b.ctx.attribute("axis", 0)))


def _zeros(b: GradientBuilder, i: int) -> Value:
    return b.add("ConstantOfShape", b.save(i).shape(), value=np.zeros(1, b.ctx.element().dtype))


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axis, sizes in (
        ((6,), 0, (2, 4)),
        ((3, 9), 1, (4, 5)),
        ((5, 3, 2), -3, (1, 3, 1)),
        ((2, 7, 3), 1, (7,)),
        ((2, 3), -1, (0, 3)),
    ):
        inputs = (random.standard_normal(shape), np.array(sizes, np.int64))
        name, count = f"{list(shape)} axis {axis}, {list(sizes)}", len(sizes)
        yield TestCase(name, inputs, {"axis": axis}, frozenset({1}), outputs=count, ulps=0)
        if count > 1:
            dropped = frozenset({0})
            yield TestCase(
                name + ", not the first",
                inputs=inputs,
                attributes={"axis": axis},
                constant=frozenset({1}),
                outputs=count,
                absent=dropped,
                ulps=0,
            )


def _equal_cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from _cases(random)
    x = random.standard_normal((3, 10))
    yield TestCase("equal parts", (x,), {"axis": 1, "num_outputs": 2}, outputs=2, ulps=0)
    yield TestCase("a smaller last part", (x,), {"axis": 1, "num_outputs": 4}, outputs=4, ulps=0)
    yield TestCase(
        "not all parts", (x,), {"axis": 1, "num_outputs": 2}, outputs=2, absent=frozenset({1}), ulps=0
    )
    yield TestCase("uncounted", (x[:, :9],), {"axis": 1, "num_outputs": 3}, outputs=3, ulps=0)
    for dtype in (np.bool_, np.int16):
        yield TestCase(
            f"of {np.dtype(dtype)}", ((x > 0).astype(dtype), np.array([3, 7])), {"axis": 1}, frozenset({1}), 2
        )
    yield TestCase("attribute", (x,), {"axis": 0, "split": (1, 2)}, outputs=2, ulps=0)


split = RewritingOp(
    "Split",
    since=(1, 2, 11, 13, 18),
    decompose=_counted,
    rewrites=(Rewrite(("Split", "x"), identity), Rewrite(("Split", "x", "sizes"), identity)),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(_concat.piece_kernel,),
    cases=_equal_cases,
    gradient=_gradient,
    differentiable=MANY,
)
split_training = Op(
    "SplitTraining",
    domain="com.microsoft",
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(_concat.piece_kernel,),
    cases=_cases,
    gradient=_gradient,
    differentiable=MANY,
)

OPS = (split, split_training)
