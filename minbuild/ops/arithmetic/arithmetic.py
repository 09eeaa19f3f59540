"""Add, Sub, Mul and Div with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ir import Call
from minbuild.ops.core.broadcasting import (
    binary_kernel,
    integer_operands,
    joint_shape,
    joint_type,
    lower_binary,
    operands,
)
from minbuild.ops.core.channel_slices import elementwise_channels
from minbuild.ops.core.definition import (
    FLOATS,
    INTEGERS,
    UNSIGNED,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    every_input,
    itself,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.pattern import Match, Replacement, Rewrite, RewritingOp
from minbuild.ops.core.value import Results, Value

add_kernel = binary_kernel("add", FLOATS + UNSIGNED)
sub_kernel = binary_kernel("sub", FLOATS + UNSIGNED)
mul_kernel = binary_kernel("mul", FLOATS + UNSIGNED)
div_kernel = binary_kernel("div", FLOATS + INTEGERS)


def _reference(function: Callable[[Any, Any], Any]) -> Callable[..., np.ndarray]:
    """`function` on numbers, and on dimensions as far as they stay whole."""

    def reference(attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if {a.dtype.kind, b.dtype.kind} >= {"O", "f"}:
            raise TypeError("a dimension has no exact product with a real number")
        with np.errstate(all="ignore"):
            return np.asarray(function(a, b))

    return reference


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integers towards zero; by zero they give zero."""
    if a.dtype.kind == "O" or b.dtype.kind == "O":
        return a // b  # dimensions are not negative
    if a.dtype.kind not in "iu":
        return a / b
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "u":
        return quotient
    return np.where((np.remainder(a, b) != 0) & ((a < 0) != (b < 0)), quotient + 1, quotient)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, a, b in operands(random):
        yield TestCase(name, (a, b), ulps=1)
    constant = (random.standard_normal((3, 5)), np.array([0.75]))
    yield TestCase("constant", constant, constant=frozenset({1}), ulps=1)
    for name, a, b in integer_operands(random):
        yield TestCase(name, (a, b))


def _div_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for case in _cases(random):
        # A divisor that finite differences do not carry across zero.
        a, b = (np.asarray(x) for x in case.inputs)
        away = np.where(b < 0, b - 0.25, b + 0.25) if b.dtype.kind == "f" else b
        yield TestCase(case.name, (a, away), constant=case.constant, ulps=1)
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, np.nan])
    yield TestCase("special values", (special[:, None], special), ulps=0)


def _add_gradient(b: GradientBuilder) -> tuple[Value, ...]:
    shape = joint_shape(b.ctx)
    return tuple(b.summed_to(b.dy[0], shape, i) for i in (0, 1))


def _sub_gradient(b: GradientBuilder) -> Results:
    da, db = _add_gradient(b)
    return da, -db


def _mul_gradient(b: GradientBuilder) -> Results:
    if b.x[0].name == b.x[1].name:  # a square
        once = b.dy[0] * b.x[0]
        return once, once
    shape = joint_shape(b.ctx)
    return tuple(b.summed_to(b.dy[0] * b.x[1 - i], shape, i) for i in (0, 1))


def _div_gradient(b: GradientBuilder) -> Results:
    """dA = dY / B, dB = -dA * Y. ORT's DivGrad for the latter is a function that its minimal builds cannot expand."""
    shape = joint_shape(b.ctx)
    da = b.dy[0] / b.x[1]
    db = -b.summed_to(da * b.y[0], shape, 1)
    return b.summed_to(da, shape, 0), db


def _difference(match: Match) -> Replacement | None:
    """x + (-y) is x - y to the bit. Operands of different shapes may be more than the kernel of other calls can."""
    alike = match.types["x"] == match.types["y"] == match.result
    return Replacement(":Sub", ("x", "y"), {}) if alike else None


def _op(
    name: str,
    kernel: KernelFunction,
    function: Callable[..., Any],
    gradient: Callable[[GradientBuilder], Results],
    cases: Callable[..., Iterable[TestCase]] = _cases,
    rematerialize: Callable[[Call, OpContext], Call | None] | None = None,
    rewrites: tuple[Rewrite, ...] = (),
) -> Op:
    return RewritingOp(
        name,
        since=(7, 13, 14),
        infer=joint_type,
        reference=_reference(function),
        lower=lower_binary(kernel),
        kernels=(kernel,),
        in_place=((0, 0), (0, 1)),
        rematerialize=rematerialize,
        batched_inputs=every_input,
        channels=elementwise_channels,
        cases=cases,
        gradient=gradient,
        rewrites=rewrites,
    )


_NEGATIVE = Rewrite(("Add", "x", ("Neg", "y")), _difference, shared=True)
add = _op("Add", add_kernel, np.add, _add_gradient, rematerialize=itself)
sub = _op("Sub", sub_kernel, np.subtract, _sub_gradient, rewrites=(_NEGATIVE,))
mul = _op("Mul", mul_kernel, np.multiply, _mul_gradient)
div = _op("Div", div_kernel, _divide, _div_gradient, _div_cases)

KERNELS = (add_kernel, sub_kernel, mul_kernel, div_kernel)
OPS = (add, sub, mul, div)
