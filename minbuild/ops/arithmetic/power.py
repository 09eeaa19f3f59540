"""Pow with broadcasting, base and exponent of any types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ir import ElementType
from minbuild.ir.dims import product
from minbuild.ops.arithmetic import arithmetic as _arithmetic
from minbuild.ops.arithmetic import unary as _unary
from minbuild.ops.core.broadcasting import (
    AXES,
    FEATURES,
    WALK,
    call_binary,
    joint_shape,
    joint_type,
    operands,
)
from minbuild.ops.core.definition import (
    BROADCAST,
    FLOATS,
    INT64,
    KernelCall,
    KernelFunction,
    OpContext,
    TestCase,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.pattern import Match, Replacement, Rewrite, RewritingOp
from minbuild.ops.core.value import Results, Value

pow_kernel = KernelFunction(
    "pow",
    ("y:T=", "a:T", "b:T", WALK),
    params=AXES,
    types={"T": (*FLOATS, INT64)},
    features={
        **FEATURES,
        "vector": "results of more than one element",
        "any_base": "bases that are not known, or not positive",
    },
    cut=BROADCAST,
)


def _exponent(ctx: OpContext) -> float | None:
    """The only exponent, where it is known."""
    known = ctx.content(1)
    return known.item() if known is not None and known.size == 1 and known.dtype != object else None


def _working_type(ctx: OpContext) -> ElementType:
    """The type in which the power is computed. The result has the type of the base."""
    base, exponent = ctx.element(0), ctx.element(1)
    if not base.is_real and not exponent.is_real:
        return INT64
    if not base.is_real or (exponent is ElementType.DOUBLE and _exponent(ctx) is None):
        return ElementType.DOUBLE
    if base.size == 2:
        return base if exponent is base else ElementType.FLOAT
    return base


def _body(b: GraphBuilder) -> Results:
    base, exponent, working = b.ctx.element(0), b.ctx.element(1), _working_type(b.ctx)
    if base is exponent is working:
        return None
    x, n = (
        name if element is working else name.cast(working)
        for name, element in zip(b.x, (base, exponent), strict=True)
    )
    power = x**n
    return power if base is working else power.cast(base)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    same = ctx.result_shape() == ctx.shape(0)
    if _exponent(ctx) == 2 and same:
        return (call_binary(_arithmetic.mul_kernel, ctx, 0, 0),)
    if _exponent(ctx) == 0.5 and same and ctx.element().is_real:
        return (_unary.sqrt_kernel.call(ctx.result(), ctx.name(0), types=(ctx.element(),)),)
    base = ctx.content(0)
    positive = base is not None and base.dtype.kind == "f" and bool(((base > 0) & (base < np.inf)).all())
    call, more = call_binary(pow_kernel, ctx), set() if positive else {"any_base"}
    if any(product(ctx.shape(i)) != 1 for i in (0, 1)):
        more.add("vector")
    return (replace(call, features=call.features | more),)


def _reference(attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "O" or b.dtype.kind == "O":
        raise TypeError("powers of dimensions are the device's")
    with np.errstate(all="ignore"):
        if a.dtype.kind in "iu" and b.dtype.kind in "iu":
            return _whole_power(a.astype(np.int64), b.astype(np.int64)).astype(a.dtype)
        return np.asarray(np.power(a, b)).astype(a.dtype)


def _whole_power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Modulo 2^64. A negative exponent keeps whole powers of 1 and -1; the rest becomes 0."""
    below = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b < 0, below, np.power(a, np.maximum(b, 0)))


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, a, b in operands(random):
        yield TestCase(name, (np.abs(a) + 0.1, b), ulps=8)
    yield from _of_constants(random)
    x = random.standard_normal((3, 7))
    for exponent in (2.0, 1.0, 3.0, -1.0, 0.0):
        for shape in ((), (1,)):
            constant = np.full(shape, exponent)
            yield TestCase(f"{exponent} {list(shape)}", (x, constant), constant=frozenset({1}), ulps=8)
    yield TestCase("1.5 of a row", (np.abs(x[0]), np.full((2, 1), 1.5)), constant=frozenset({1}), ulps=8)
    yield TestCase("square root", (np.abs(x), np.array(0.5)), constant=frozenset({1}), ulps=2)
    yield TestCase("square, int64 exponent", (x, np.array(2, np.int64)), constant=frozenset({1}), ulps=2)
    bases = np.array([0.0, -0.0, 1.0, -1.0, -2.0, np.inf, -np.inf, np.nan])
    yield TestCase("special values", (bases[:, None], np.array([2.0, 3.0, 0.5, -1.0])), ulps=8)
    yield from _mixed_cases(random)


def _of_constants(random: np.random.Generator) -> Iterable[TestCase]:
    """Powers of numbers that are known, such as the corrections of Adam's moments."""
    for shapes in (((), ()), ((1,), ()), ((1, 1), (1,))):
        one, other = (random.uniform(0.5, 2, shape) for shape in shapes)
        yield TestCase(f"one number {shapes}", (one, other), ulps=8)
        yield TestCase(f"of a constant {shapes}", (one, 10 * other), constant=frozenset({0}), ulps=16)
    exponents = np.array([0.0, -0.0, 1.0, -3.5, 12.0, -14.0, np.inf, -np.inf, np.nan])
    for number in (1.0, 0.9, 2.5, 1e-30):
        inputs = np.array(number), exponents
        yield TestCase(f"powers of {number}", inputs, constant=frozenset({0}), ulps=16, smooth=False)


def _mixed_cases(random: np.random.Generator) -> Iterable[TestCase]:
    x, whole = random.standard_normal((3, 4)), random.integers(-3, 6, (3, 4))
    for element in (ElementType.INT32, ElementType.INT64, ElementType.INT8):
        yield TestCase(f"{element.label} exponents", (x, whole.astype(element.dtype)), ulps=8)
        yield TestCase(
            f"{element.label} of {element.label}",
            ((whole - 1).astype(element.dtype), whole[:1].astype(element.dtype)),
        )
    yield TestCase("uint32 exponents", (x, np.abs(whole).astype(np.uint32)), ulps=8)
    whole_base = np.array([1, 2, 9], np.int32), np.array([2.0, 0.5, 1.5], np.float64)
    yield TestCase("int32 of float", whole_base, smooth=False)
    yield TestCase("wraps around", (np.array([3, -7, 10], np.int64), np.array([60, 41, 30], np.int64)))


def _gradient(b: GradientBuilder) -> Results:
    """ORT stops at the exponent; here it has its gradient too."""
    shape = joint_shape(b.ctx)
    base = _base_gradient(b) if 0 in b.requires_grad else None
    exponent = _exponent_gradient(b) if 1 in b.requires_grad else None
    return (base and b.summed_to(base, shape, 0), exponent and b.summed_to(exponent, shape, 1))


def _exponents(b: GradientBuilder) -> Value:
    """The exponents in the type of the base."""
    element = b.ctx.element()
    return b.x[1] if b.ctx.element(1) is element else b.x[1].cast(element)


def _base_gradient(b: GradientBuilder) -> Value | None:
    """dY * n * X^(n-1), and 0 where n is 0, whatever X is."""
    dy, x, n = b.dy[0], b.x[0], _exponent(b.ctx)
    if n == 0:
        return None
    if n is None:
        exponents, one, zero = _exponents(b), b.constant(1), b.constant(0)
        slope = exponents * x ** (exponents - one)
        return dy * b.where(exponents.equal(zero), zero, slope)
    if n == 1:
        return dy
    scaled = dy * n
    if n == 0.5:
        return scaled / b.y[0]
    return scaled * (x if n == 2 else x ** (n - 1))


def _exponent_gradient(b: GradientBuilder) -> Value:
    """dY * Y * log(X), and 0 where X is 0: there the power does not depend on a positive exponent."""
    x, zero, one = b.x[0], b.constant(0), b.constant(1)
    safe = b.where(x.equal(zero), one, x)
    return b.dy[0] * (b.y[0] * safe.log())


def _first_power(match: Match) -> Replacement | None:
    if match.number("exponent") == 1 and match.types["x"] == match.result:
        return Replacement(":Identity", ("x",), {})
    return None


power = RewritingOp(
    "Pow",
    since=(7, 12, 13, 15),
    infer=joint_type,
    reference=_reference,
    lower=_lower,
    kernels=(_arithmetic.mul_kernel, pow_kernel, _unary.sqrt_kernel),
    # Only the base: an exponent is not needed where it is known.
    in_place=((0, 0),),
    decompose=_body,
    decomposes_to=("Cast",),
    cases=_cases,
    gradient=_gradient,
    rewrites=(Rewrite(("Pow", "x", "exponent"), _first_power),),
)

KERNELS = (pow_kernel,)
OPS = (power,)
