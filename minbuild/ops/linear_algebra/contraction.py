"""Contraction: the product of two tensors, summed over the axes that the result lacks.

MatMul and FusedMatMul are such products, Einsum is made of them, and transpositions of operands and results only
reorder the letters of their equations (einsum_equation.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import Dim, evaluate, product, symbols_in
from minbuild.ops.core.definition import (
    FLOAT,
    FLOATS,
    KernelCall,
    KernelFunction,
    OpContext,
    TestCase,
    UnsupportedUse,
    storage_type,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.linear_algebra.einsum_equation import Equation, operand_gradient
from minbuild.ops.linear_algebra.gemm_packing import packed_kernel_of, packing_scratch
from minbuild.ops.linear_algebra.matmul_rewrites import ProductOp, product_rewrites, scaled

WORDS = (ElementType.UINT32, ElementType.UINT64)  # whole numbers, signed or not
MOST_AXES = 15
TYPICAL_SIZE = 32  # of a free dimension, to tell long axes from short ones

contraction_kernel = KernelFunction(
    "contraction",
    ("y:T=", "a:T", "b:T", "bias:T?", "outer:extent", "inner:extent"),
    params=("y_order:int", "a_order:int", "b_order:int", "alpha:float"),
    types={"T": (*FLOATS, *WORDS)},
    features={"bias": "adds a third operand"},
    work=lambda params, shapes: product(shapes[4]) * product(shapes[5]),
)
packed_kernel = packed_kernel_of(contraction_kernel)


@dataclass(frozen=True)
class Layout:
    """An equation as the kernel takes it: axes of the result, the last two of matrices, then those summed over; and of
    result and operands the order of their axes in memory, last one first, as four-bit numbers."""

    outer: tuple[Dim, ...]
    inner: tuple[Dim, ...]
    orders: tuple[int, int, int]
    exchanged: bool  # the operands


def layout_of(equation: Equation, a: Shape, b: Shape) -> Layout:
    """The loops of a contraction: neighbouring axes that go together everywhere are one, and the longest ones make
    the matrices. `equation` names the axes, `a` and `b` are the shapes of the operands."""
    sizes = equation.extents((a, b))
    moving = {letter for letter, size in sizes.items() if size != 1}
    # An operand does not move along an axis where its own size is 1.
    parts = [
        "".join(c for c, size in zip(letters, shape, strict=True) if c in moving and size != 1)
        for letters, shape in zip(equation.operands, (a, b), strict=True)
    ]
    parts.append("".join(c for c in equation.y if c in moving))
    parts, sizes = _folded(parts, sizes)
    exchanged = bool(parts[2]) and parts[2][-1] in parts[0] and parts[2][-1] not in parts[1]
    left, right, y = (parts[1], parts[0], parts[2]) if exchanged else tuple(parts)

    def longest(letters: Iterable[str]) -> str:
        return max(letters, key=lambda c: (_typical(sizes[c]), c), default="")

    rows = longest(c for c in y if c in left and c not in right)
    columns = y[-1] if y and y[-1] in right and y[-1] not in left else ""
    columns = columns or longest(c for c in y if c in right and c not in left)
    summed = sorted({c for c in left + right if c not in y})
    depth = longest(c for c in summed if c in left and c in right) or longest(summed)
    outer = [*(c for c in y if c not in (rows, columns)), rows, columns]
    inner = [*(c for c in summed if c != depth), depth]
    order = {c: i for i, c in enumerate([*outer, *inner]) if c}
    if len(outer) > 8 or len(inner) > 8 or len(outer) + len(inner) > MOST_AXES:
        raise UnsupportedUse(f"the product {equation} has too many axes. Reshape its operands to fewer")
    y_order, left_order, right_order = (order_of([order[c] for c in part]) for part in (y, left, right))
    return Layout(
        tuple(sizes[c] if c else 1 for c in outer),
        tuple(sizes[c] if c else 1 for c in inner),
        (y_order, left_order, right_order),
        exchanged,
    )


def _folded(parts: Sequence[str], sizes: Mapping[str, Dim]) -> tuple[list[str], dict[str, Dim]]:
    """Letters that follow each other wherever one of them stands become one."""
    parts, sizes = list(parts), dict(sizes)
    while (pair := _inseparable(parts)) is not None:
        parts = [p.replace(pair, pair[0]) for p in parts]
        sizes[pair[0]] = sizes[pair[0]] * sizes[pair[1]]
    return parts, sizes


def _inseparable(parts: Sequence[str]) -> str | None:
    for pair in sorted({p[i : i + 2] for p in parts for i in range(len(p) - 1)}):
        once = all(p.count(pair[0]) == p.count(pair[1]) == p.count(pair) <= 1 for p in parts)
        if once and pair[0] != pair[1]:
            return pair
    return None


def _typical(size: Dim) -> int:
    return evaluate(size, dict.fromkeys(symbols_in(size), TYPICAL_SIZE))


def order_of(axes: Sequence[int]) -> int:
    """Four bits for each axis from the last one on, the rest all ones, as an int32."""
    if len(axes) > 8:
        raise UnsupportedUse("an operand of a product has too many axes")
    word = sum(axis << 4 * i for i, axis in enumerate(reversed(axes)))
    word |= 0xFFFFFFFF << 4 * len(axes) & 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


def call_product(ctx: OpContext, equation: Equation, alpha: float = 1.0, bias: str = "") -> KernelCall:
    """Output 0 as the product of inputs 0 and 1. `ctx` is the operator's, `equation` names the axes; the product is
    times `alpha`, plus `bias`, a value or ""."""
    layout = layout_of(equation, ctx.shape(0), ctx.shape(1))
    names = (ctx.name(1), ctx.name(0)) if layout.exchanged else (ctx.name(0), ctx.name(1))
    element = ctx.element()
    room = packing_scratch(ctx, contraction_kernel, *layout.outer[-2:], layout.inner[-1])
    return (packed_kernel if room else contraction_kernel).call(
        ctx.result(),
        *names,
        bias,
        TensorType(FLOAT, layout.outer),
        TensorType(FLOAT, layout.inner),
        *room,
        types=(element if element.is_real else storage_type(element),),
        params=(*layout.orders, float(alpha)),
        features=("bias",) if bias else (),
        accumulate=ctx.accumulate,
    )


def product_type(ctx: OpContext, equation: Equation) -> Sequence[TensorType]:
    """The type of the product of inputs 0 and 1."""
    sizes = equation.extents((ctx.shape(0), ctx.shape(1)))
    return (TensorType(ctx.element(), tuple(sizes[c] for c in equation.y)),)


# ------------------------------------------------------------------------------------------------- Contraction


def _equation(attributes: Mapping[str, Any], ranks: Sequence[int]) -> Equation:
    return Equation.parse(attributes["equation"], ranks)


def equation_at(ctx: OpContext) -> Equation:
    """The equation of an application."""
    return _equation(ctx.attributes, (ctx.rank(0), ctx.rank(1)))


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return product_type(ctx, equation_at(ctx))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    equation = equation_at(ctx)
    bias = ctx.name(2) if ctx.has(2) else ""
    return (call_product(ctx, equation, ctx.attribute("alpha", 1.0), bias),)


def _reference(
    attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None
) -> np.ndarray:
    y = Equation.parse(attributes["equation"], (a.ndim, b.ndim)).evaluate(a, b)
    y = scaled(y, attributes)
    return y if bias is None else y + bias


def _gradient(b: GradientBuilder) -> Results:
    equation, alpha = equation_at(b.ctx), b.ctx.attribute("alpha", 1.0)

    def write(operands: Sequence[Value], text: str) -> Value:
        return b.add("Contraction", *operands, domain="minbuild", equation=text, alpha=alpha)

    results = [operand_gradient(b, equation, i, write) if i in b.requires_grad else None for i in (0, 1)]
    if 2 in b.requires_grad:
        results.append(b.summed_to(b.dy[0], _infer(b.ctx)[0].shape, 2))
    return tuple(results)


_EQUATIONS = (
    ("ab,bc->ac", (5, 7), (7, 3)),
    ("ba,bc->ac", (33, 17), (33, 20)),
    ("ab,cb->ca", (6, 40), (9, 40)),
    ("abc,cd->abd", (2, 5, 7), (7, 9)),
    ("abc,abd->cd", (2, 5, 7), (2, 5, 9)),
    ("acbd,aebd->abce", (2, 5, 3, 8), (2, 6, 3, 8)),
    ("abce,aebd->acbd", (2, 3, 5, 6), (2, 6, 3, 8)),
    ("ab,cab->bac", (4, 3), (5, 4, 3)),
    ("acb,cbd->abd", (3, 2, 4), (2, 4, 6)),
    ("abc,cbd->ad", (3, 2, 4), (4, 2, 6)),
    ("a,a->", (19,), (19,)),
    ("acbd,aebd->abce", (1, 130, 2, 67), (1, 129, 2, 67)),  # from here on packed
    ("abce,aebd->acbd", (1, 2, 130, 129), (1, 129, 2, 67)),
    ("ab,cb->ac", (35, 170), (200, 170)),
    ("ba,bc->ac", (20, 170), (20, 203)),
    ("a,b->ab", (4,), (19,)),
    (",a->a", (), (7,)),
    ("abcdefg,gfedcbh->ah", (2, 2, 1, 3, 2, 2, 2), (2, 2, 2, 3, 1, 2, 5)),
)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for text, left, right in _EQUATIONS:
        a, b = random.standard_normal(left), random.standard_normal(right)
        for alpha in (1.0, 0.5):
            yield TestCase(f"{text} {alpha}", (a, b), {"equation": text, "alpha": alpha}, ulps=8)
    a, b = random.standard_normal((2, 5, 7)), random.standard_normal((7, 9))
    for shape in ((9,), (1, 9), (5, 9), (1, 5, 9), (2, 5, 9)):
        bias = random.standard_normal(shape)
        yield TestCase(f"bias {list(shape)}", (a, b, bias), {"equation": "abc,cd->abd"}, ulps=8)
    for dtype in (np.int32, np.uint32, np.int64, np.uint64):
        whole = [random.integers(0, 99, shape).astype(dtype) for shape in ((2, 5, 7), (2, 3, 7))]
        yield TestCase(str(np.dtype(dtype)), tuple(whole), {"equation": "abc,adc->abd"})
    square = random.standard_normal((2, 4, 4))
    yield TestCase("diagonal", (square, np.ones(())), {"equation": "abb,->ab"}, smooth=False)
    yield TestCase("one repeats", (a[:, :1], b[:1]), {"equation": "abc,cd->abd"})
    for left, right in (((0, 3), (3, 4)), ((4, 3), (3, 0))):
        empty = (np.ones(left), np.ones(right))
        yield TestCase(f"empty {list(left)} {list(right)}", empty, {"equation": "ab,bc->ac"}, smooth=False)
    yield TestCase("empty sum", (np.ones((2, 0)), np.ones((0, 3)), np.arange(3.0)), {"equation": "ab,bc->ac"})


contraction = ProductOp(
    "Contraction",
    domain="minbuild",
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(contraction_kernel, packed_kernel),
    accumulates=frozenset({0}),
    cases=_cases,
    equation=_equation,
    gradient=_gradient,
    rewrites=product_rewrites("minbuild:Contraction", _equation),
)

KERNELS = (contraction_kernel, packed_kernel)
OPS = (contraction,)
