"""Reductions that are others with something around them: ReduceL1, ReduceL2, ReduceSumSquare, ReduceLogSum,
ReduceLogSumExp and ReduceAllL2. None has a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from minbuild.ir import ElementType
from minbuild.ops.core.definition import Op, TestCase
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.reduction.reduction_axes import (
    Numbers,
    axes_of,
    cases,
    distinct,
    expanded,
    keeps,
    normal,
    positive,
    spread,
)
from minbuild.ops.reduction.reduction_axes import reference as reduction

Rule = Callable[[GraphBuilder, Value], Value]  # of an input that holds real numbers


def total(b: GraphBuilder, x: Value, op_type: str = "ReduceSum", keepdims: bool | None = None) -> Value:
    """`x` reduced as the operator asks for. `b` is the graph, `op_type` the reduction; `keepdims` is the node's own
    unless given."""
    return b.reduce(op_type, x, axes_of(b.ctx), keeps(b.ctx) if keepdims is None else keepdims)


def nonzero(b: GraphBuilder, x: Value, element: ElementType) -> Value:
    """`x` with 1 in place of 0: what may be divided by. `b` is the graph, `element` is the type of `x`."""
    return x + x.equal(b.constant(0, element)).cast(element)


def _in_double(rule: Rule) -> Callable[[GraphBuilder], Results]:
    """Whole numbers go through double."""

    def body(b: GraphBuilder) -> Results:
        if b.ctx.element().is_real:
            return rule(b, b.x[0])
        x = b.x[0].cast(ElementType.DOUBLE)
        return rule(b, x).cast(b.ctx.element())

    return body


def _log_sum_exp(b: GraphBuilder, x: Value) -> Value:
    """Below the maximum, so that nothing overflows. An infinite maximum is replaced by the nearest number: its
    difference from infinity is no number, that of every other is."""
    element = b.ctx.element() if b.ctx.element().is_real else ElementType.DOUBLE
    largest = float(ml_dtypes.finfo(element.dtype).max)
    limits = (b.constant(-largest, element), b.constant(largest, element))
    top = b.add("Clip", total(b, x, "ReduceMax", True), *limits)
    sums = total(b, (x - top).exp())
    return sums.log() + (top if keeps(b.ctx) else top.squeeze(axes_of(b.ctx)))


# ---------------------------------------------------------------------------------------------------- gradients


def _l1_gradient(b: GradientBuilder) -> Results:
    return b.x[0].sign() * spread(b, b.dy[0])


def _l2_gradient(b: GradientBuilder) -> Results:
    """dy x / y; 0 where y is."""
    each = b.dy[0] / nonzero(b, b.y[0], b.ctx.element())
    return b.x[0] * spread(b, each)


def _sum_square_gradient(b: GradientBuilder) -> Results:
    return b.x[0] * spread(b, b.dy[0] * 2)


def _log_sum_gradient(b: GradientBuilder) -> Results:
    return expanded(b, b.dy[0] / b.y[0].exp())


def _log_sum_exp_gradient(b: GradientBuilder) -> Results:
    share = (b.x[0] - spread(b, b.y[0])).exp()
    return share * spread(b, b.dy[0])


# ---------------------------------------------------------------------------------------------------- operators


def _op(
    name: str,
    body: Callable[[GraphBuilder], Results],
    decomposes_to: tuple[str, ...],
    function: Callable[..., Any],
    gradient: Callable[[GradientBuilder], Results],
    numbers: Numbers = normal,
) -> Op:
    return Op(
        name,
        since=(1, 11, 13, 18),
        reference=reduction(function),
        decompose=body,
        decomposes_to=decomposes_to,
        cases=cases(numbers, ulps=32),
        gradient=gradient,
    )


def _stable_log_sum_exp(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> Any:
    top = x.max(axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    return np.log(np.exp(x - top).sum(axis, keepdims=keepdims)) + (top if keepdims else top.squeeze(axis))


reduce_l1 = _op(
    "ReduceL1",
    lambda b: total(b, b.x[0].abs()),
    decomposes_to=("Abs", "ReduceSum"),
    function=lambda x, **options: np.sum(np.abs(x), **options),
    gradient=_l1_gradient,
    numbers=distinct,
)
reduce_l2 = _op(
    "ReduceL2",
    _in_double(lambda b, x: total(b, x * x).sqrt()),
    decomposes_to=("Mul", "ReduceSum", "Sqrt"),
    function=lambda x, **options: np.sqrt(np.sum(x * x, **options)),
    gradient=_l2_gradient,
    numbers=positive,
)
reduce_sum_square = _op(
    "ReduceSumSquare",
    lambda b: total(b, b.x[0] * b.x[0]),
    ("Mul", "ReduceSum"),
    lambda x, **options: np.sum(x * x, **options),
    _sum_square_gradient,
)
reduce_log_sum = _op(
    "ReduceLogSum",
    _in_double(lambda b, x: total(b, x).log()),
    decomposes_to=("Log", "ReduceSum"),
    function=lambda x, **options: np.log(np.sum(x, **options)),
    gradient=_log_sum_gradient,
    numbers=positive,
)


def _log_sum_exp_cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from cases(ulps=32)(random)
    axes, over_rows = np.array([1]), frozenset({1})
    x = np.array([[1000.0, 1000.5, 999.0], [-1000.0, -1001.0, -1000.0], [-1e30, 3.0, 4.0]])
    yield TestCase("neither overflows nor vanishes", (x, axes), constant=over_rows, ulps=4, smooth=False)
    x = np.array([[-np.inf, -np.inf], [np.inf, 1.0], [-np.inf, 2.0], [np.nan, 1.0]])
    yield TestCase("special values", (x, axes), {"keepdims": 0}, over_rows)


reduce_log_sum_exp = Op(
    "ReduceLogSumExp",
    since=(1, 11, 13, 18),
    reference=reduction(_stable_log_sum_exp),
    decompose=_in_double(_log_sum_exp),
    decomposes_to=("Add", "Clip", "Exp", "Log", "ReduceMax", "ReduceSum", "Sub"),
    cases=_log_sum_exp_cases,
    gradient=_log_sum_exp_gradient,
)

# ---------------------------------------------------------------------------------- of several tensors together


def _all_body(b: GraphBuilder) -> Results:
    squares = [(x * x).sum(tuple(range(b.ctx.rank(i))), False) for i, x in enumerate(b.x)]
    return b.add("Sum", *squares).sqrt()


def _all_reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(sum((x * x).sum() for x in inputs)))


def _all_gradient(b: GradientBuilder) -> Results:
    each = b.dy[0] / nonzero(b, b.y[0], b.ctx.element())
    return tuple(x * each for x in b.x)


def _all_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shapes in (((3,),), ((2, 3), (4,)), ((), (5, 1), (2, 2, 2))):
        yield TestCase(f"{shapes}", tuple(np.asarray(random.standard_normal(s)) for s in shapes), ulps=16)


reduce_all_l2 = Op(
    "ReduceAllL2",
    domain=MICROSOFT,
    reference=_all_reference,
    decompose=_all_body,
    decomposes_to=("Mul", "ReduceSum", "Sqrt", "Sum"),
    cases=_all_cases,
    gradient=_all_gradient,
)

OPS = (reduce_l1, reduce_l2, reduce_sum_square, reduce_log_sum, reduce_log_sum_exp, reduce_all_l2)
