"""MatMul, and ONNX Runtime's FusedMatMul: products of stacks of matrices, transposed and scaled on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import KernelCall, OpContext, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.linear_algebra.contraction import (
    call_product,
    contraction_kernel,
    packed_kernel,
    product_type,
)
from minbuild.ops.linear_algebra.einsum_equation import Equation, operand_gradient
from minbuild.ops.linear_algebra.matmul_rewrites import ProductOp, product_rewrites, scaled

ROW, COLUMN, DEPTH = "m", "n", "k"  # letters of the matrices' axes; those of stacks are capitals


def equation_of(attributes: Mapping[str, Any], ranks: Sequence[int]) -> Equation:
    """The product as an equation. A vector has only the axis that is summed over.

    `transA` exchanges the last two axes; `transBatchA` says that the first axis stands behind those of the stack.
    """
    a_rank, b_rank = ranks
    if a_rank == 0 or b_rank == 0:
        raise UnsupportedUse("scalars have no matrix product. Use Mul")
    stack = ascii_uppercase[: max(a_rank, b_rank, 2) - 2]
    a = _letters(stack, a_rank, matrix=ROW + DEPTH, vector=DEPTH, attributes=attributes, of="A")
    b = _letters(stack, b_rank, matrix=DEPTH + COLUMN, vector=DEPTH, attributes=attributes, of="B")
    rows, columns = ROW * (a_rank > 1), COLUMN * (b_rank > 1)
    return Equation((a, b), stack + rows + columns)


def _letters(stack: str, rank: int, matrix: str, vector: str, attributes: Mapping[str, Any], of: str) -> str:
    if rank == 1:
        return vector
    first, second = reversed(matrix) if attributes.get(f"trans{of}", 0) else iter(matrix)
    own = stack[len(stack) + 2 - rank :]
    if attributes.get(f"transBatch{of}", 0):
        return first + own + second
    return own + first + second


def equation_at(ctx: OpContext) -> Equation:
    """The equation of an application."""
    return equation_of(ctx.attributes, (ctx.rank(0), ctx.rank(1)))


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return product_type(ctx, equation_at(ctx))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return (call_product(ctx, equation_at(ctx), ctx.attribute("alpha", 1.0)),)


def _reference(attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return scaled(equation_of(attributes, (a.ndim, b.ndim)).evaluate(a, b), attributes)


# ---------------------------------------------------------------------------------------------------- gradients


def _matmul_gradient(b: GradientBuilder) -> Results:
    """FusedMatMul with the other operand, summed over the axes of the stack that one operand lacks. A weight shared
    by a stack is one product of two matrices (Gemm), as ONNX Runtime writes it."""
    ranks = b.ctx.rank(0), b.ctx.rank(1)
    if 1 in ranks:
        return _vector_gradient(b, *ranks)
    return (
        _summed(b, 0, _fused(b, b.dy[0], b.x[1], transB=1)) if 0 in b.requires_grad else None,
        _right_gradient(b) if 1 in b.requires_grad else None,
    )


def _right_gradient(b: GradientBuilder) -> Value:
    depth, columns = b.ctx.shape(1)[-2:]
    if b.ctx.rank(1) == 2 < b.ctx.rank(0) and isinstance(depth, int) and isinstance(columns, int):
        flat = [x.reshape([-1, size]) for x, size in ((b.x[0], depth), (b.dy[0], columns))]
        return b.add("Gemm", *flat, transA=1)
    return _summed(b, 1, _fused(b, b.x[0], b.dy[0], transA=1))


def _fused(b: GradientBuilder, left: Value, right: Value, **flags: Any) -> Value:
    return b.microsoft("FusedMatMul", left, right, **flags)


def _summed(b: GradientBuilder, i: int, gradient: Value) -> Value:
    """A product that has all axes of the stack, summed over those that input `i` lacks."""
    stack = _infer(b.ctx)[0].shape or ()
    return b.summed_to(gradient, (*stack[: len(stack) - 2], *b.ctx.shape(i)[-2:]), i)


def _vector_gradient(b: GradientBuilder, a_rank: int, b_rank: int) -> Results:
    """With each vector as a matrix of one row or column. The result's gradient gets the same axes."""
    shape = _infer(b.ctx)[0].shape or ()
    axes = [len(shape) - (b_rank > 1)] * (a_rank == 1) + [len(shape) + (a_rank == 1)] * (b_rank == 1)
    dy = b.dy[0].unsqueeze(axes)
    stack = shape[: len(shape) - (a_rank > 1) - (b_rank > 1)]
    results: list[Value | None] = [None, None]
    if 0 in b.requires_grad:
        right = b.x[1].unsqueeze([1]) if b_rank == 1 else b.x[1]
        made = _fused(b, dy, right, transB=1)
        results[0] = _to_operand(b, 0, made, (*stack, *(1, *b.ctx.shape(0))[-2:]))
    if 1 in b.requires_grad:
        left = b.x[0].unsqueeze([0]) if a_rank == 1 else b.x[0]
        made = _fused(b, left, dy, transA=1)
        results[1] = _to_operand(b, 1, made, (*stack, *(*b.ctx.shape(1), 1)[-2 - (b_rank > 1) :][:2]))
    return tuple(results)


def _to_operand(b: GradientBuilder, i: int, gradient: Value, made: tuple[Any, ...]) -> Value:
    """A gradient with stack axes and a matrix of one row or column for a vector, as input `i` has it."""
    if b.ctx.rank(i) > 1:
        return b.summed_to(gradient, made, i)
    vector = gradient.squeeze([len(made) - 2 + i])
    return b.summed_to(vector, (*made[:-2], *b.ctx.shape(i)), i)


def _fused_gradient(b: GradientBuilder) -> Results:
    """By equations, whatever is transposed."""
    equation, alpha = equation_at(b.ctx), b.ctx.attribute("alpha", 1.0)

    def write(operands: Sequence[Value], text: str) -> Value:
        product = b.add("Einsum", *operands, equation=text)
        return product if alpha == 1 else product * alpha

    return tuple(operand_gradient(b, equation, i, write) if i in b.requires_grad else None for i in (0, 1))


# -------------------------------------------------------------------------------------------------------- cases

_Shapes = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
_SHAPES: _Shapes = (
    ((5, 7), (7, 3)),
    ((1, 1), (1, 1)),
    ((33, 70), (70, 19)),
    ((2, 5, 7), (7, 3)),
    ((2, 5, 7), (2, 7, 3)),
    ((1, 5, 7), (4, 7, 3)),
    ((4, 5, 7), (1, 7, 3)),
    ((5, 7), (4, 7, 3)),
    ((2, 3, 8, 6), (2, 3, 6, 9)),
    ((2, 1, 8, 6), (3, 6, 9)),
    ((3, 8, 6), (2, 1, 6, 9)),
    ((2, 3, 1, 6), (2, 3, 6, 1)),
    ((2, 1, 3, 1, 4, 6), (2, 1, 5, 6, 2)),
)
_VECTORS: _Shapes = (
    ((7,), (7,)),
    ((7,), (7, 3)),
    ((5, 7), (7,)),
    ((7,), (2, 7, 3)),
    ((2, 5, 7), (7,)),
    ((1,), (1,)),
)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for left, right in (*_SHAPES, *_VECTORS):
        inputs = random.standard_normal(left), random.standard_normal(right)
        yield TestCase(f"{list(left)} {list(right)}", inputs, ulps=8)
    for dtype in (np.int32, np.uint32, np.int64, np.uint64):
        whole = tuple(random.integers(0, 99, shape).astype(dtype) for shape in ((2, 5, 7), (7, 3)))
        yield TestCase(str(np.dtype(dtype)), whole)
    yield TestCase("no rows", (np.ones((0, 3)), random.standard_normal((3, 4))), smooth=False)


def _fused_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for a_flag in (0, 1):
        for b_flag in (0, 1):
            for left, right in _SHAPES:
                a = _placed(random.standard_normal(left), a_flag, 0)
                b = _placed(random.standard_normal(right), b_flag, 0)
                flags = {"transA": a_flag, "transB": b_flag, "alpha": 0.125}
                yield TestCase(f"{list(left)} {list(right)} {a_flag}{b_flag}", (a, b), flags, ulps=8)
            for a_stack, b_stack in ((0, 1), (1, 0), (1, 1)):
                a = _placed(random.standard_normal((2, 3, 8, 6)), a_flag, a_stack)
                b = _placed(random.standard_normal((2, 3, 6, 9)), b_flag, b_stack)
                flags = {"transA": a_flag, "transB": b_flag, "transBatchA": a_stack, "transBatchB": b_stack}
                yield TestCase(f"stacks {a_stack}{b_stack} {a_flag}{b_flag}", (a, b), flags, ulps=8)
    for left, right in _VECTORS:
        inputs = random.standard_normal(left), random.standard_normal(right)
        flags = {"transA": int(len(left) == 1), "transB": int(len(right) == 1)}
        yield TestCase(f"{list(left)} {list(right)}", inputs, flags, ulps=8)


def _placed(matrices: np.ndarray, transposed: int, stack_inside: int) -> np.ndarray:
    """Matrices stored so that the flags give them back."""
    stored = np.swapaxes(matrices, -1, -2) if transposed else matrices
    return np.ascontiguousarray(np.moveaxis(stored, -2, 0) if stack_inside else stored)


matmul = ProductOp(
    "MatMul",
    since=(1, 9, 13),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(contraction_kernel, packed_kernel),
    accumulates=frozenset({0}),
    equation=equation_of,
    cases=_cases,
    gradient=_matmul_gradient,
    rewrites=product_rewrites("MatMul", equation_of),
)
fused_matmul = ProductOp(
    "FusedMatMul",
    domain="com.microsoft",
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(contraction_kernel, packed_kernel),
    accumulates=frozenset({0}),
    equation=equation_of,
    cases=_fused_cases,
    gradient=_fused_gradient,
    rewrites=product_rewrites("com.microsoft:FusedMatMul", equation_of),
)

OPS = (matmul, fused_matmul)
