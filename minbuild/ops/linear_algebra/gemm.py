"""Gemm: the matrix product of dense layers and of their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ir import Call, Shape, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import (
    FLOATS,
    KernelCall,
    KernelFunction,
    OpContext,
    TestCase,
    UnsupportedUse,
    require_equal,
    storage_type,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.linear_algebra.contraction import WORDS
from minbuild.ops.linear_algebra.einsum_equation import Equation
from minbuild.ops.linear_algebra.gemm_packing import is_large_outer, packed_kernel_of, packing_scratch
from minbuild.ops.linear_algebra.matmul_rewrites import ProductOp


def _multiplications(params: Sequence[int], shapes: Sequence[Shape]) -> Dim:
    """Rows and columns of y, and the depth that a has besides its rows."""
    return product(shapes[0]) * shapes[1][0 if params[0] else 1]


gemm_kernel = KernelFunction(
    "gemm",
    ("y:T=", "a:T", "b:T", "c:T?"),
    params=("trans_a:int", "trans_b:int", "alpha:float", "beta:float"),
    types={"T": (*FLOATS, *WORDS)},
    features={
        "bias": "adds a third operand",
        "bias_any": "which is not just a row",
        "outer": "outer products of real size",
    },
    hints=frozenset({"outer"}),
    work=_multiplications,
)
packed_kernel = packed_kernel_of(gemm_kernel)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    a, b = ctx.shape(0), ctx.shape(1)
    if len(a) != 2 or len(b) != 2:
        raise UnsupportedUse(f"operands are {list(a)} and {list(b)}, but Gemm takes two matrices. Use MatMul")
    depth, rows = a if ctx.attribute("transA", 0) else a[::-1]
    columns, height = b if ctx.attribute("transB", 0) else b[::-1]
    require_equal(depth, height, f"cannot multiply {list(a)} with {list(b)}")
    return (TensorType(ctx.element(), (rows, columns)),)


def _reference(
    attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None
) -> np.ndarray:
    left = a.T if attributes.get("transA", 0) else a
    right = b.T if attributes.get("transB", 0) else b
    y = scaled(left @ right, attributes.get("alpha", 1.0))
    return y if c is None else y + scaled(c, attributes.get("beta", 1.0))


def scaled(x: np.ndarray, factor: float) -> np.ndarray:
    """Whole numbers stay whole."""
    return x * x.dtype.type(factor)


def _is_row(ctx: OpContext) -> bool:
    """True if the third operand has one element for each column and nothing else."""
    shape = ctx.shape(2)
    return len(shape) in (1, 2) and shape[-1] == ctx.result_shape()[1] and shape[:-1] in ((), (1,))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    beta, element = float(ctx.attribute("beta", 1.0)), ctx.element()
    bias = ctx.has(2) and beta != 0
    (rows, columns), depth = ctx.result_shape(), ctx.shape(0)[0 if ctx.attribute("transA", 0) else 1]
    room = packing_scratch(ctx, gemm_kernel, rows, columns, depth)
    third = () if not bias else ("bias",) if _is_row(ctx) and beta == 1 else ("bias", "bias_any")
    outer = ("outer",) if room and is_large_outer(element, rows, columns, depth) else ()
    call = (packed_kernel if room else gemm_kernel).call(
        ctx.result(),
        ctx.name(0),
        ctx.name(1),
        ctx.name(2) if bias else "",
        *room,
        types=(element if element.is_real else storage_type(element),),
        params=(
            ctx.attribute("transA", 0),
            ctx.attribute("transB", 0),
            float(ctx.attribute("alpha", 1.0)),
            beta,
        ),
        features=(*third, *outer),
        accumulate=ctx.accumulate,
    )
    return (call,)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for m, n, k in ((1, 1, 1), (1, 10, 33), (8, 10, 128), (5, 7, 3), (33, 19, 70), (6, 1, 40)):
        for trans_a, trans_b in ((0, 0), (0, 1), (1, 0), (1, 1)):
            a = random.standard_normal((k, m) if trans_a else (m, k))
            b = random.standard_normal((n, k) if trans_b else (k, n))
            attributes = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0}
            yield TestCase(f"{m}x{n}x{k} {trans_a}{trans_b}", (a, b), attributes, ulps=8)
            for shape in ((), (n,), (1, n), (m, 1), (m, n)):
                c = random.standard_normal(shape)
                yield TestCase(
                    f"{m}x{n}x{k} {trans_a}{trans_b} bias {list(shape)}", (a, b, c), attributes, ulps=8
                )
    for m, n, k in ((33, 181, 201), (18, 290, 530), (261, 7, 170), (5, 200, 170), (190, 180, 9)):  # packed
        for trans_a, trans_b in ((0, 0), (0, 1), (1, 0), (1, 1)):
            a = random.standard_normal((k, m) if trans_a else (m, k))
            b = random.standard_normal((n, k) if trans_b else (k, n))
            attributes = {"transA": trans_a, "transB": trans_b, "alpha": 0.5}
            c = random.standard_normal(n)
            yield TestCase(f"{m}x{n}x{k} {trans_a}{trans_b} bias", (a, b, c), attributes, ulps=max(8, k // 8))
    outer = random.standard_normal((1, 521)), random.standard_normal((1, 523))
    yield TestCase("outer product", outer, {"transA": 1, "alpha": 0.5}, ulps=8)
    a, b = random.standard_normal((3, 4)), random.standard_normal((4, 5))
    yield TestCase("bias as it is", (a, b, random.standard_normal(5)), {}, ulps=8)
    yield TestCase("bias unused", (a, b, random.standard_normal(5)), {"beta": 0.0}, ulps=8)
    for dtype in (np.int32, np.uint32, np.int64, np.uint64):
        whole = [random.integers(0, 99, shape).astype(dtype) for shape in ((4, 3), (5, 4), (5,))]
        flags = {"transA": 1, "transB": 1}
        yield TestCase(str(np.dtype(dtype)), tuple(whole), flags)
        yield TestCase(f"{np.dtype(dtype)} scaled", tuple(whole), {**flags, "alpha": 2.0, "beta": 3.0})


def _gradient(b: GradientBuilder) -> Results:
    """Products again, in the order in which a transposed operand needs no transposition."""
    (a, right), dy = b.x[:2], b.dy[0]
    trans_a, trans_b = (int(b.ctx.attribute(name, 0)) for name in ("transA", "transB"))
    alpha, beta = (float(b.ctx.attribute(name, 1.0)) for name in ("alpha", "beta"))

    def product(left: Value, right: Value, trans_left: int, trans_right: int) -> Value:
        return b.add("Gemm", left, right, transA=trans_left, transB=trans_right, alpha=alpha)

    results: list[Value | None] = [None, None, None]
    if 0 in b.requires_grad:
        results[0] = product(right, dy, trans_b, 1) if trans_a else product(dy, right, 0, 1 - trans_b)
    if 1 in b.requires_grad:
        results[1] = product(dy, a, 1, trans_a) if trans_b else product(a, dy, 1 - trans_a, 0)
    if 2 in b.requires_grad:
        summed = b.summed_to(dy, _infer(b.ctx)[0].shape, 2)
        results[2] = summed if beta == 1 else summed * beta
    return tuple(results[: len(b.x)])


def _equation(attributes: Mapping[str, Any], ranks: Sequence[int]) -> Equation:
    a = "km" if attributes.get("transA", 0) else "mk"
    b = "nk" if attributes.get("transB", 0) else "kn"
    return Equation((a, b), "mn")


def _reordered(call: Call, equation: Equation) -> Call | None:
    """Flags, and for a transposed result the product of the transposed operands in the other order."""
    (a, b), third, inputs = equation.operands, any(call.inputs[2:]), call.inputs
    flags = {"transA": int(a == "km"), "transB": int(b == "nk")}
    if equation.y == "nm":
        if third:
            return None
        flags = {"transA": int(b == "kn"), "transB": int(a == "mk")}
        inputs = (inputs[1], inputs[0], *inputs[2:])
    return replace(call, inputs=inputs, attributes={**call.attributes, **flags})


gemm = ProductOp(
    "Gemm",
    since=(7, 9, 11, 13),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(gemm_kernel, packed_kernel),
    accumulates=frozenset({0}),
    equation=_equation,
    reordered=_reordered,
    cases=_cases,
    gradient=_gradient,
)

KERNELS = (gemm_kernel, packed_kernel)
OPS = (gemm,)
