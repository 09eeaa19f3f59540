"""Comparisons and logic, with broadcasting: their results are bool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Poly
from minbuild.ops.core.broadcasting import (
    AXES,
    FEATURES,
    WALK,
    call_binary,
    integer_operands,
    joint_shape,
    operands,
)
from minbuild.ops.core.definition import (
    BOOL,
    BROADCAST,
    FLOATS,
    NUMBERS,
    UNSIGNED,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
)
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results

_FEATURES = {"broadcast": FEATURES["broadcast"]}


def _comparison(function: str, types: tuple[ElementType, ...] = NUMBERS) -> KernelFunction:
    return KernelFunction(
        function, ("y:bool=", "a:T", "b:T", WALK), AXES, {"T": types}, _FEATURES, cut=BROADCAST
    )


def _logic(function: str) -> KernelFunction:
    return KernelFunction(function, ("y:bool=", "a:bool", "b:bool", WALK), AXES, features=_FEATURES)


less_kernel = _comparison("less")
less_or_equal_kernel = _comparison("less_or_equal")
equal_kernel = _comparison("equal", FLOATS + UNSIGNED)
and_kernel = _logic("logical_and")
or_kernel = _logic("logical_or")
xor_kernel = _logic("logical_xor")
not_kernel = KernelFunction("logical_not", ("y:bool=", "x:bool"))


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(BOOL, joint_shape(ctx)),)


def _lower(kernel: KernelFunction, left: int, right: int) -> Callable[[OpContext], Sequence[KernelCall]]:
    return lambda ctx: (call_binary(kernel, ctx, left, right),)


def _lower_not(ctx: OpContext) -> Sequence[KernelCall]:
    return (not_kernel.call(ctx.result(), ctx.name(0)),)


def _reference(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    def reference(attributes: Mapping[str, Any], *operands: np.ndarray) -> np.ndarray:
        if any(x.dtype == object for x in operands):
            raise TypeError("how free dimensions compare is known on the device only")
        return np.asarray(function(*operands))

    return reference


def _equal_reference(attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype == object or b.dtype == object:
        return np.asarray(np.frompyfunc(_same_dim, 2, 1)(a, b), object).astype(np.bool_)
    return np.asarray(np.equal(a, b))


def _same_dim(a: Any, b: Any) -> bool:
    """True if two dimensions are equal; raises TypeError where that depends on their sizes, which no -1 does."""
    if a == b:
        return True
    if any(isinstance(x, Poly) for x in (a, b)) and not any(isinstance(x, int) and x < 0 for x in (a, b)):
        raise TypeError("how free dimensions compare is known on the device only")
    return False


def _equal_body(b: GraphBuilder) -> Results:
    """Truth may be any byte but 0, so it is not compared byte by byte."""
    return ~b.add("Xor", *b.x) if b.ctx.element() is BOOL else None


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, a, b in operands(random):
        yield TestCase(name, (np.round(a), np.round(b)))
    a = np.array([1.0, -1.0, np.inf, np.nan, 0.0])
    yield TestCase("special values", (a[:, None], a))
    for name, a, b in integer_operands(random):
        yield TestCase(name, (a, b))
        yield TestCase(f"{name}, equal", (a, a))


def _equal_cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from _cases(random)
    yield from _logic_cases(random)


def _logic_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, a, b in operands(random):
        yield TestCase(name, (a > 0, b > 0))


def _not_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (9,), (2, 3)):
        yield TestCase(f"shape {list(shape)}", (random.standard_normal(shape) > 0,))


def _op(name: str, kernel: KernelFunction, function: Callable[..., Any], exchanged: bool = False) -> Op:
    cases = _cases if kernel.types else _logic_cases
    order = (1, 0) if exchanged else (0, 1)
    pairs = () if kernel.types else ((0, 0), (0, 1))
    since = (7, 9, 11, 12, 13, 16)
    reference = _reference(function)
    return Op(
        name,
        since=since,
        infer=_infer,
        reference=reference,
        lower=_lower(kernel, *order),
        kernels=(kernel,),
        in_place=pairs,
        cases=cases,
    )


less = _op("Less", less_kernel, np.less)
greater = _op("Greater", less_kernel, np.greater, exchanged=True)
less_or_equal = _op("LessOrEqual", less_or_equal_kernel, np.less_equal)
greater_or_equal = _op("GreaterOrEqual", less_or_equal_kernel, np.greater_equal, exchanged=True)
equal = Op(
    "Equal",
    since=(7, 11, 13, 19),
    infer=_infer,
    reference=_equal_reference,
    lower=_lower(equal_kernel, 0, 1),
    kernels=(equal_kernel,),
    decompose=_equal_body,
    decomposes_to=("Not", "Xor"),
    cases=_equal_cases,
)
both = _op("And", and_kernel, np.logical_and)
either = _op("Or", or_kernel, np.logical_or)
exclusive = _op("Xor", xor_kernel, np.logical_xor)
negation = Op(
    "Not",
    since=(1,),
    infer=_infer,
    reference=_reference(np.logical_not),
    lower=_lower_not,
    kernels=(not_kernel,),
    in_place=((0, 0),),
    cases=_not_cases,
)

KERNELS = (less_kernel, less_or_equal_kernel, equal_kernel, and_kernel, or_kernel, xor_kernel, not_kernel)
OPS = (less, greater, less_or_equal, greater_or_equal, equal, both, either, exclusive, negation)
