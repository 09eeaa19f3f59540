"""Einsum: sums of products of any number of operands, made of products of two, sums and transpositions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import Op, OpContext, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.linear_algebra.einsum_equation import Equation, operand_gradient


def equation_at(ctx: OpContext) -> Equation:
    """The equation of an application."""
    return Equation.parse(ctx.attribute("equation"), [ctx.rank(i) for i in range(len(ctx.inputs))])


def _body(b: GraphBuilder) -> Results:
    """From the first operand on, one product after the other; what nothing else needs is summed over at once."""
    equation = equation_at(b.ctx)
    shapes = [b.ctx.shape(i) for i in range(len(b.x))]
    equation.extents(shapes)
    letters, value = "", b.x[0]
    for i, own in enumerate(equation.operands):
        others = "".join(equation.operands[:i] + equation.operands[i + 1 :])
        own, x = _alone(b, own, b.x[i], others + equation.y)
        if i == 0:
            letters, value = own, x
            continue
        needed = "".join(equation.operands[i + 1 :]) + equation.y
        last = i == len(equation.operands) - 1
        result = equation.y if last else "".join(dict.fromkeys(c for c in letters + own if c in needed))
        value = _product(b, value, left_letters=letters, right=x, right_letters=own, y=result)
        letters = result
    return _transposed(b, value, letters, equation.y)


def _alone(b: GraphBuilder, letters: str, x: Value, needed: str) -> tuple[str, Value]:
    """An operand without diagonals, and without the axes that nothing else has."""
    if len(set(letters)) < len(letters):
        own = "".join(dict.fromkeys(c for c in letters if c in needed))
        one = b.constant(1)
        x = b.add("Contraction", x, one, domain="minbuild", equation=f"{letters},->{own}")
        return own, x
    axes = [i for i, c in enumerate(letters) if c not in needed]
    return "".join(c for c in letters if c in needed), x.sum(axes, keepdims=False)


def _product(
    b: GraphBuilder, left: Value, left_letters: str, right: Value, right_letters: str, y: str
) -> Value:
    if set(left_letters) | set(right_letters) == set(y):  # nothing to sum over
        return _spread(b, left, left_letters, y) * _spread(b, right, right_letters, y)
    equation = f"{left_letters},{right_letters}->{y}"
    return b.add("Contraction", left, right, domain="minbuild", equation=equation)


def _spread(b: GraphBuilder, x: Value, letters: str, y: str) -> Value:
    """An operand with its axes where the result has them, and size 1 where it has none."""
    x = _transposed(b, x, letters, "".join(c for c in y if c in letters))
    return x.unsqueeze([i for i, c in enumerate(y) if c not in letters])


def _transposed(b: GraphBuilder, x: Value, letters: str, y: str) -> Value:
    return x if letters == y else x.transpose(tuple(letters.index(c) for c in y))


def _reference(attributes: Mapping[str, Any], *operands: np.ndarray) -> np.ndarray:
    return Equation.parse(attributes["equation"], [x.ndim for x in operands]).evaluate(*operands)


def _gradient(b: GradientBuilder) -> Results:
    equation = equation_at(b.ctx)

    def write(operands: Sequence[Value], text: str) -> Value:
        return b.add("Einsum", *operands, equation=text)

    return tuple(
        operand_gradient(b, equation, i, write) if i in b.requires_grad else None for i in range(len(b.x))
    )


_CASES = (
    ("ij,jk->ik", (5, 7), (7, 3)),
    ("ij , jk", (5, 7), (7, 3)),
    ("ij->ji", (5, 7)),
    ("ij->i", (5, 7)),
    ("ij->", (5, 7)),
    ("ij", (5, 7)),
    ("ji", (5, 7)),
    ("ii->i", (6, 6)),
    ("ii->", (6, 6)),
    ("ii", (6, 6)),
    ("...ii->...i", (2, 3, 4, 4)),
    ("iijj->ij", (3, 3, 4, 4)),
    ("i,i", (9,), (9,)),
    ("i,i->i", (9,), (9,)),
    ("i,j->ji", (9,), (4,)),
    ("ij,k->k", (3, 4), (5,)),
    (",ij->ji", (), (3, 4)),
    ("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bihd,bjhd->bhij", (2, 4, 3, 5), (2, 6, 3, 5)),
    ("bij,bjk->bki", (2, 4, 3), (2, 3, 5)),
    ("...ij,...jk->...ik", (2, 1, 4, 3), (5, 3, 2)),
    ("...ij,...jk", (4, 3), (2, 3, 2)),
    ("i...,i...->...", (4, 2, 3), (4, 3)),
    ("ij,jk,kl->il", (3, 4), (4, 5), (5, 2)),
    ("bi,oij,bj->bo", (2, 3), (4, 3, 5), (2, 5)),
    ("a,b,c->abc", (2,), (3,), (4,)),
    ("Ab,bC->AC", (2, 3), (3, 4)),
)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for text, *shapes in _CASES:
        inputs = tuple(random.uniform(0.5, 1.5, shape) for shape in shapes)
        yield TestCase(text, inputs, {"equation": text}, ulps=12)
    for dtype in (np.int32, np.int64):
        whole = tuple(random.integers(-9, 9, shape).astype(dtype) for shape in ((4, 3), (3, 5)))
        yield TestCase(str(np.dtype(dtype)), whole, {"equation": "ij,jk->ki"})


einsum = Op(
    "Einsum",
    since=(12,),
    reference=_reference,
    decompose=_body,
    decomposes_to=("Mul", "ReduceSum", "Transpose", "minbuild:Contraction"),
    cases=_cases,
    gradient=_gradient,
)

OPS = (einsum,)
