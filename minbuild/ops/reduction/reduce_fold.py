"""ReduceMax, ReduceMin and ReduceProd; sums and means of whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ops.core.definition import (
    BOOL,
    FLOATS,
    INTEGERS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    storage_type,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results
from minbuild.ops.reduction.reduction_axes import (
    axes_of,
    cases,
    distinct,
    groups_of,
    in_steps,
    infer,
    keeps,
    reference,
    spread,
)

SUMMED = (ElementType.INT32, ElementType.INT64, ElementType.UINT32, ElementType.UINT64)
_ARGS = ("y:T=", "x:T", "groups:extent")
extremum_kernel = KernelFunction(
    "reduce_extremum",
    _ARGS,
    params=("smallest:int",),
    types={"T": (*FLOATS, *INTEGERS, BOOL)},
    features={"max": "finds the largest", "min": "finds the smallest"},
)
product_kernel = KernelFunction(
    "reduce_product", _ARGS, types={"T": (*FLOATS, ElementType.UINT32, ElementType.UINT64)}
)
integer_kernel = KernelFunction(
    "reduce_integers",
    _ARGS,
    params=("mean:int",),
    types={"T": SUMMED},
    features={"mean": "divides by the number of elements"},
)


def call_fold(ctx: OpContext, kind: str) -> KernelCall:
    """A reduction of input 0: `max`, `min`, `product`, or `sum` and `mean` of whole numbers."""
    element, groups = ctx.element(), groups_of(ctx.shape(), axes_of(ctx))
    arguments = (ctx.result(), ctx.name(0), TensorType(element, groups))
    if kind == "product" or (kind == "sum" and not element.is_real):
        # Sums and products of signed and unsigned numbers have the same bits.
        element = element if element.is_real or element not in SUMMED else storage_type(element)
    if kind == "product":
        return product_kernel.call(*arguments, types=(element,))
    if kind in ("max", "min"):
        params = (int(kind == "min"),)
        return extremum_kernel.call(*arguments, types=(element,), params=params, features=(kind,))
    params, features = (int(kind == "mean"),), ("mean",) * (kind == "mean")
    return integer_kernel.call(
        *arguments, types=(element,), params=params, features=features, accumulate=ctx.accumulate
    )


def _extremum(function: Callable[..., Any], sign: int) -> Callable[..., Any]:
    """With the value that ONNX gives the extremum of nothing."""

    def extremum(x: np.ndarray, **options: Any) -> Any:
        if x.dtype.kind == "f":
            return function(x, initial=-sign * np.inf, **options)
        if x.dtype == bool:
            return function(x, initial=sign < 0, **options)
        limits = np.iinfo(x.dtype)
        return function(x, initial=limits.min if sign > 0 else limits.max, **options)

    return extremum


def whole_cases(elements: Iterable[ElementType]) -> Callable[..., Iterable[TestCase]]:
    def made(random: np.random.Generator) -> Iterable[TestCase]:
        for element in elements:
            low = 0 if element.dtype.kind in "ub" else -9
            high = 2 if element is BOOL else 9
            for shape, axes in (((3, 5), (0,)), ((4, 6), (1,)), ((2, 3, 2, 2), (0, 2))):
                x = random.integers(low, high, shape).astype(element.dtype)
                inputs = (x, np.array(axes, np.int64))
                yield TestCase(f"{element.label} {list(shape)} over {axes}", inputs, constant=frozenset({1}))

    return made


def _extremum_cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from cases(distinct, ulps=0)(random)
    yield from whole_cases((*INTEGERS, BOOL))(random)
    x = np.array([[1.0, np.nan, 2.0], [np.inf, -np.inf, 0.0], [-1.0, -1.0, -1.0]])
    yield TestCase("special values", (x, np.array([1])), constant=frozenset({1}), smooth=False)


def _batched(ctx: OpContext) -> Iterable[int]:
    """Samples are reduced one by one where the first axis stays. Passes ask before `decompose` refuses axes that depend
    on data."""
    if ctx.has(1) and ctx.content(1) is None:
        return ()
    axes = axes_of(ctx)
    return (0,) if keeps(ctx) and axes and 0 not in axes else ()


def _extremum_gradient(b: GradientBuilder) -> Results:
    """To every element that is the extremum; elements that tie share."""
    chosen = b.x[0].equal(spread(b, b.y[0])).cast(b.ctx.element())
    axes = axes_of(b.ctx)
    each = spread(b, b.dy[0]) / chosen.sum(axes)
    return chosen * each


def _extremum_op(name: str, kind: str, sign: int) -> Op:
    return Op(
        name,
        since=(1, 11, 12, 13, 18, 20),
        infer=infer,
        reference=reference(_extremum(np.max if sign > 0 else np.min, sign)),
        lower=lambda ctx: (call_fold(ctx, kind),),
        kernels=(extremum_kernel,),
        decompose=in_steps(name),
        batched_inputs=_batched,
        cases=_extremum_cases,
        gradient=_extremum_gradient,
    )


def _product_cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from cases()(random)
    yield from whole_cases(SUMMED)(random)
    x = random.standard_normal((4, 5))
    x[0, 2] = x[1, 1] = x[1, 3] = 0
    inputs = (x, np.array([1]))
    yield TestCase("one zero, two zeros", inputs, constant=frozenset({1}), ulps=16)


def _product_gradient(b: GradientBuilder) -> Results:
    """Each element's is the product of all others: of the rest that is not zero, where no other is zero."""
    element, axes = b.ctx.element(), axes_of(b.ctx)
    zero = b.x[0].equal(0)
    counted = zero.cast(element)
    safe = b.x[0] + counted  # 1 in place of 0
    others = counted.sum(axes) - counted
    alone = others.equal(0).cast(element)
    each = b.reduce("ReduceProd", safe, axes) / safe
    return each * alone * spread(b, b.dy[0])


reduce_max = _extremum_op("ReduceMax", "max", 1)
reduce_min = _extremum_op("ReduceMin", "min", -1)
reduce_prod = Op(
    "ReduceProd",
    since=(1, 11, 13, 18),
    infer=infer,
    reference=reference(np.prod),
    lower=lambda ctx: (call_fold(ctx, "product"),),
    kernels=(product_kernel,),
    decompose=in_steps("ReduceProd"),
    cases=_product_cases,
    gradient=_product_gradient,
)

KERNELS = (extremum_kernel, product_kernel, integer_kernel)
OPS = (reduce_max, reduce_min, reduce_prod)
