"""HalfContraction: a product of float16 or bfloat16 tensors by the processor's own arithmetic, with a result in float.

Products of a model become these where --half-arithmetic asks for it (passes/rewrite/native_products.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from minbuild.ir import Call, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import FLOAT, HALVES, KernelCall, KernelFunction, OpContext, TestCase
from minbuild.ops.linear_algebra.contraction import layout_of
from minbuild.ops.linear_algebra.einsum_equation import Equation
from minbuild.ops.linear_algebra.matmul_rewrites import ProductOp, scaled

half_contraction_kernel = KernelFunction(
    "half_contraction",
    ("y:float=", "a:T", "b:T", "outer:extent", "inner:extent"),
    params=("y_order:int", "a_order:int", "b_order:int", "alpha:float"),
    types={"T": HALVES},
    work=lambda params, shapes: product(shapes[3]) * product(shapes[4]),
)


def _equation(attributes: Mapping[str, Any], ranks: Sequence[int]) -> Equation:
    return Equation.parse(attributes["equation"], ranks)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    equation = _equation(ctx.attributes, (ctx.rank(0), ctx.rank(1)))
    sizes = equation.extents((ctx.shape(0), ctx.shape(1)))
    return (TensorType(FLOAT, tuple(sizes[c] for c in equation.y)),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    layout = layout_of(_equation(ctx.attributes, (ctx.rank(0), ctx.rank(1))), ctx.shape(0), ctx.shape(1))
    names = (ctx.name(1), ctx.name(0)) if layout.exchanged else (ctx.name(0), ctx.name(1))
    call = half_contraction_kernel.call(
        ctx.result(),
        *names,
        TensorType(FLOAT, layout.outer),
        TensorType(FLOAT, layout.inner),
        types=(ctx.element(),),
        params=(*layout.orders, float(ctx.attribute("alpha", 1.0))),
        accumulate=ctx.accumulate,
    )
    return (call,)


def _reference(attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    left, right = a.astype(np.float64), b.astype(np.float64)
    return scaled(_equation(attributes, (a.ndim, b.ndim)).evaluate(left, right), attributes)


_EQUATIONS = (
    ("ab,bc->ac", (5, 7), (7, 3)),
    ("ab,bc->ac", (8, 128), (128, 16)),
    ("ab,bc->ac", (17, 300), (300, 70)),
    ("ba,bc->ac", (133, 17), (133, 20)),
    ("ab,cb->ac", (9, 144), (65, 144)),
    ("acbd,aebd->abce", (2, 5, 3, 8), (2, 6, 3, 8)),
    ("abc,cbd->ad", (3, 2, 4), (4, 2, 6)),
    ("a,a->", (19,), (19,)),
    ("a,b->ab", (4,), (19,)),
)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    """Small whole numbers, whose sums have no rounding in either type."""
    for text, left, right in _EQUATIONS:
        for dtype in (np.float16, ml_dtypes.bfloat16):
            a, b = (random.integers(-3, 4, shape).astype(dtype) for shape in (left, right))
            name = f"{text} {list(left)} {np.dtype(dtype)}"
            yield TestCase(name, (a, b), {"equation": text, "alpha": 0.5}, smooth=False)


def _reordered(call: Call, equation: Equation) -> Call:
    return replace(call, attributes={**call.attributes, "equation": str(equation)})


half_contraction = ProductOp(
    "HalfContraction",
    domain="minbuild",
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(half_contraction_kernel,),
    accumulates=frozenset({0}),
    cases=_cases,
    equation=_equation,
    reordered=_reordered,
)

KERNELS = (half_contraction_kernel,)
OPS = (half_contraction,)
