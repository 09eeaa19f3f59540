"""Add, Sub, Mul, Div and Pow with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.model import ElementType, TensorType
from minbuild.ops import unary as _unary
from minbuild.ops.body import Backward
from minbuild.ops.broadcasting import AXES, FEATURES, WALK, launch_binary
from minbuild.ops.definition import (
    FLOATS,
    INDICES,
    Case,
    KernelFunction,
    Launch,
    Op,
    Site,
    Unknown,
    broadcast_shapes,
)
from minbuild.ops.pattern import Match, Replacement, Rewrite, RewritingOp


def _kernel(function: str, types: tuple[ElementType, ...]) -> KernelFunction:
    return KernelFunction(
        function, ("y:T=", "a:T", "b:T", WALK), params=AXES, types={"T": types}, features=FEATURES
    )


add_kernel = _kernel("add", FLOATS + INDICES)
sub_kernel = _kernel("sub", FLOATS + INDICES)
mul_kernel = _kernel("mul", FLOATS + INDICES)
div_kernel = _kernel("div", FLOATS)  # integers would trap on division by zero
pow_kernel = _kernel("pow", FLOATS)


def _infer(site: Site) -> Sequence[TensorType]:
    return (TensorType(site.element(), broadcast_shapes(site.shape(0), site.shape(1))),)


def _select(kernel: KernelFunction) -> Callable[[Site], Sequence[Launch]]:
    return lambda site: (launch_binary(kernel, site),)


def _pow_select(site: Site) -> Sequence[Launch]:
    known = site.content(1)
    exponent = known.item() if known is not None and known.size == 1 and known.dtype != object else None
    if exponent == 2 and site.result_shape() == site.shape(0):
        return (launch_binary(mul_kernel, site, 0, 0),)
    if exponent == 0.5 and site.result_shape() == site.shape(0):
        return (_unary.sqrt_kernel.launch(site.result(), site.name(0), types=(site.element(),)),)
    if site.element(0) != site.element(1):
        raise Unknown(
            f"exponents of {site.element(1).label} for a base of {site.element(0).label} are not supported"
        )
    return (launch_binary(pow_kernel, site),)


def _reference(function: Callable[[Any, Any], Any]) -> Callable[..., np.ndarray]:
    """`function` on numbers, and on dimensions as far as they stay whole."""

    def reference(attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if {a.dtype.kind, b.dtype.kind} >= {"O", "f"}:
            raise TypeError("a dimension has no exact product with a real number")
        return np.asarray(function(a, b))

    return reference


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "O" or b.dtype.kind == "O":
        return a // b  # dimensions are not negative
    if a.dtype.kind != "f":
        return np.trunc(a / b).astype(a.dtype) if np.any((a < 0) | (b < 0)) else a // b
    with np.errstate(divide="ignore", invalid="ignore"):
        return a / b


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.power(a, b)


_SHAPES = (
    ((), ()),
    ((1,), (1,)),
    ((7,), (7,)),
    ((2, 3, 5), (2, 3, 5)),
    ((33,), (1,)),
    ((1,), (33,)),
    ((4, 9), ()),
    ((1, 9), (9,)),
    ((5, 9), (9,)),
    ((9,), (5, 9)),
    ((5, 1), (5, 9)),
    ((5, 1), (1, 9)),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((2, 3, 4, 5), (2, 1, 1, 5)),
    ((2, 1, 4, 1), (1, 3, 1, 5)),
    ((1, 1, 1), (2, 1, 3)),
)


def operands(random: np.random.Generator) -> Iterable[tuple[str, np.ndarray, np.ndarray]]:
    """Pairs of arrays that broadcast, in every way that matters."""
    for a, b in _SHAPES:
        yield f"{list(a)} with {list(b)}", random.standard_normal(a), random.standard_normal(b)


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for name, a, b in operands(random):
        yield Case(name, (a, b), ulps=1)
    yield Case(
        "constant", (random.standard_normal((3, 5)), np.array([0.75])), constant=frozenset({1}), ulps=1
    )


def _integer_cases(random: np.random.Generator) -> Iterable[Case]:
    yield from _cases(random)
    for dtype in (np.int32, np.int64):
        for shape in ((3, 5), (5,), (), (3, 1)):
            a, b = (
                random.integers(-99, 99, (3, 5)).astype(dtype),
                random.integers(-99, 99, shape).astype(dtype),
            )
            yield Case(f"{np.dtype(dtype)} {list(shape)}", (a, b))


def _pow_cases(random: np.random.Generator) -> Iterable[Case]:
    for name, a, b in operands(random):
        yield Case(name, (np.abs(a) + 0.1, b), ulps=8)
    x = random.standard_normal((3, 7))
    for exponent in (2.0, 1.0, 3.0, -1.0, 0.0):
        for shape in ((), (1,)):
            constant = np.full(shape, exponent)
            yield Case(f"{exponent} {list(shape)}", (x, constant), constant=frozenset({1}), ulps=8)
    yield Case("square root", (np.abs(x), np.array(0.5)), constant=frozenset({1}), ulps=2)
    yield Case("square, int64 exponent", (x, np.array(2, np.int64)), constant=frozenset({1}), ulps=2)
    bases, exponents = (
        np.array([0.0, -0.0, 1.0, -1.0, -2.0, np.inf, -np.inf, np.nan]),
        np.array([2.0, 3.0, 0.5, -1.0]),
    )
    yield Case("special values", (bases[:, None], exponents), ulps=8)


def _add_gradient(b: Backward) -> Sequence[str]:
    shape = _infer(b.site)[0].shape
    return b.each(*(b.summed_to(b.dy[0], shape, i) if i in b.wants else "" for i in (0, 1)))


def _mul_gradient(b: Backward) -> Sequence[str]:
    shape = _infer(b.site)[0].shape
    return tuple(
        b.summed_to(b.add("Mul", b.dy[0], b.x[1 - i]), shape, i) if i in b.wants else "" for i in (0, 1)
    )


def _op(
    name: str,
    kernel: KernelFunction,
    function: Callable[..., Any],
    cases: Callable[..., Iterable[Case]],
    gradient: Callable[[Backward], Sequence[str]] | None = None,
) -> Op:
    return Op(
        name,
        since=(7, 13, 14),
        infer=_infer,
        reference=_reference(function),
        select=_select(kernel),
        in_place=((0, 0), (0, 1)),
        cases=cases,
        gradient=gradient,
    )


def _first_power(match: Match) -> Replacement | None:
    if match.number("exponent") == 1 and match.types["x"] == match.result:
        return Replacement(":Identity", ("x",), {})
    return None


add = _op("Add", add_kernel, np.add, _integer_cases, _add_gradient)
sub = _op("Sub", sub_kernel, np.subtract, _integer_cases)
mul = _op("Mul", mul_kernel, np.multiply, _integer_cases, _mul_gradient)
div = _op("Div", div_kernel, _divide, _cases)
power = RewritingOp(
    "Pow",
    since=(7, 12, 13, 15),
    infer=_infer,
    reference=_reference(_power),
    select=_pow_select,
    # Only the base: an exponent may be of another type, and is not needed where it is known.
    in_place=((0, 0),),
    cases=_pow_cases,
    rewrites=(Rewrite(("Pow", "x", "exponent"), _first_power),),
)
