"""Comparisons and logic, with broadcasting: their results are bool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.model import TensorType
from minbuild.ops import arithmetic as _arithmetic
from minbuild.ops.broadcasting import AXES, FEATURES, WALK, launch_binary
from minbuild.ops.definition import (
    BOOL,
    FLOATS,
    INDICES,
    Case,
    KernelFunction,
    Launch,
    Op,
    Site,
    broadcast_shapes,
)

_FEATURES = {"broadcast": FEATURES["broadcast"]}


def _comparison(function: str) -> KernelFunction:
    types = {"T": FLOATS + INDICES}
    return KernelFunction(function, ("y:bool=", "a:T", "b:T", WALK), AXES, types, _FEATURES)


def _logic(function: str) -> KernelFunction:
    return KernelFunction(function, ("y:bool=", "a:bool", "b:bool", WALK), AXES, features=_FEATURES)


less_kernel = _comparison("less")
less_or_equal_kernel = _comparison("less_or_equal")
equal_kernel = _comparison("equal")
and_kernel = _logic("logical_and")
or_kernel = _logic("logical_or")
not_kernel = KernelFunction("logical_not", ("y:bool=", "x:bool"))


def _infer(site: Site) -> Sequence[TensorType]:
    return (TensorType(BOOL, broadcast_shapes(*(site.shape(i) for i in range(len(site.inputs))))),)


def _select(kernel: KernelFunction, left: int, right: int) -> Callable[[Site], Sequence[Launch]]:
    return lambda site: (launch_binary(kernel, site, left, right),)


def _not_select(site: Site) -> Sequence[Launch]:
    return (not_kernel.launch(site.result(), site.name(0)),)


def _reference(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    def reference(attributes: Mapping[str, Any], *operands: np.ndarray) -> np.ndarray:
        if any(x.dtype == object for x in operands):
            raise TypeError("how free dimensions compare is known on the device only")
        return np.asarray(function(*operands))

    return reference


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for name, a, b in _arithmetic.operands(random):
        yield Case(name, (np.round(a), np.round(b)))
    a = np.array([1.0, -1.0, np.inf, np.nan, 0.0])
    yield Case("special values", (a[:, None], a))
    for dtype in (np.int32, np.int64):
        yield Case(str(np.dtype(dtype)), (random.integers(0, 4, (3, 5)).astype(dtype), np.array(2, dtype)))


def _logic_cases(random: np.random.Generator) -> Iterable[Case]:
    for name, a, b in _arithmetic.operands(random):
        yield Case(name, (a > 0, b > 0))


def _not_cases(random: np.random.Generator) -> Iterable[Case]:
    for shape in ((), (9,), (2, 3)):
        yield Case(f"shape {list(shape)}", (random.standard_normal(shape) > 0,))


def _op(name: str, kernel: KernelFunction, function: Callable[..., Any], exchanged: bool = False) -> Op:
    cases = _cases if kernel.types else _logic_cases
    order = (1, 0) if exchanged else (0, 1)
    pairs = () if kernel.types else ((0, 0), (0, 1))
    since = (7, 9, 11, 12, 13, 16)
    select = _select(kernel, *order)
    reference = _reference(function)
    return Op(
        name, since=since, infer=_infer, reference=reference, select=select, in_place=pairs, cases=cases
    )


less = _op("Less", less_kernel, np.less)
greater = _op("Greater", less_kernel, np.greater, exchanged=True)
less_or_equal = _op("LessOrEqual", less_or_equal_kernel, np.less_equal)
greater_or_equal = _op("GreaterOrEqual", less_or_equal_kernel, np.greater_equal, exchanged=True)
equal = _op("Equal", equal_kernel, np.equal)
both = _op("And", and_kernel, np.logical_and)
either = _op("Or", or_kernel, np.logical_or)
negation = Op(
    "Not",
    since=(1,),
    infer=_infer,
    reference=_reference(np.logical_not),
    select=_not_select,
    in_place=((0, 0),),
    cases=_not_cases,
)
