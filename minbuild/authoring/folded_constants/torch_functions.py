"""PyTorch's functions by the names that its exporter gives to values, with what they compute and their inverses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

_Function = Callable[[np.ndarray], np.ndarray]
_Numbers = Callable[[np.ndarray, Any], np.ndarray]
# Names of PyTorch's functions: the operator, what it computes, and the inverse.
_INVERTIBLE: Mapping[str, tuple[str, _Function, _Function]] = {
    "atan": ("Atan", np.arctan, np.tan),
    "exp": ("Exp", np.exp, np.log),
    "log": ("Log", np.log, np.exp),
    "neg": ("Neg", np.negative, np.negative),
    "reciprocal": ("Reciprocal", np.reciprocal, np.reciprocal),
    "sigmoid": ("Sigmoid", lambda x: 1 / (1 + np.exp(-x)), lambda y: np.log(y) - np.log1p(-y)),
    "softplus": ("Softplus", lambda x: np.logaddexp(0, x), lambda y: y + np.log(-np.expm1(-y))),
    "sqrt": ("Sqrt", np.sqrt, np.square),
    "tanh": ("Tanh", np.tanh, np.arctanh),
}
# By the names of functions of a parameter x and a number: operators, True where the number comes first, the number that
# makes y of x, and y.
_LESS = ("Sub", True, lambda x, y: y + x, lambda x, number: number - x)
_MINUS = ("Sub", False, lambda x, y: x - y, lambda x, number: x - number)
_OF_NUMBERS: Mapping[str, Sequence[tuple[str, bool, _Numbers, _Numbers]]] = {
    "add": (("Add", False, lambda x, y: y - x, lambda x, number: x + number),),
    "div": (
        ("Div", False, lambda x, y: x / y, lambda x, number: x / number),
        ("Div", True, lambda x, y: y * x, lambda x, number: number / x),
    ),
    "mul": (("Mul", False, lambda x, y: y / x, lambda x, number: x * number),),
    "rsub": (_LESS,),
    "sub": (_LESS, _MINUS),
}
LAYOUT = frozenset(
    ("alias", "clone", "contiguous", "detach", "flatten", "permute", "reshape", "squeeze", "t", "transpose")
) | {"unflatten", "unsqueeze", "view"}
_CONSTANT = re.compile(r"(val|scalar_tensor_default)(_\d+)?")
_INSIDE_SOFTPLUS = re.compile(
    r"(beta|threshold|tmp|self_scaled|softplus)(_\d+)?(_cast)?"
)  # with the default beta
_NUMBERED = re.compile(r"_\d+$")
_CLOSE = 1e-5  # relative
_DIFFERENT = 1e-3  # of the largest element: the least range of elements that tell `n - x` from `x - n`


def stem(name: str) -> str:
    """The name of a value without the number that makes it unique."""
    return _NUMBERED.sub("", name)


def is_number(name: str) -> bool:
    """True if `name` is one that the exporter gives to a number of the code, such as `val_3`."""
    return _CONSTANT.fullmatch(name) is not None


def functions_of(name: str, between: Sequence[str]) -> tuple[str, ...] | None:
    """The invertible functions that made constant `name`, the last one first; None where the names do not show it."""
    names = (name, *between)
    if stem(name) == "softplus":
        names = (name, *(n for n in between if not _INSIDE_SOFTPLUS.fullmatch(n)))
    stems = [stem(n) for n in names if not is_number(n)]
    functions = [s for s in stems if s in _INVERTIBLE]
    layout = [s for s in stems if s in LAYOUT]
    if len(functions) + len(layout) < len(stems) or not stems:
        return None
    if any(is_number(n) for n in names) and not layout:
        return None  # a function of something else, too
    if len(functions) > 2 or (len(functions) == 2 and stem(name) not in functions):
        return None  # in an order that is not told
    return tuple(functions)


def operator_of(function: str) -> str:
    """The operator of an invertible function."""
    return _INVERTIBLE[function][0]


def applied(functions: Sequence[str], x: np.ndarray) -> np.ndarray:
    """The result of invertible functions, the last to be applied first."""
    for function in reversed(functions):
        x = _INVERTIBLE[function][1](x)
    return x


def inverted(functions: Sequence[str], y: np.ndarray) -> np.ndarray:
    """The array whose `applied` functions are `y`."""
    for function in functions:
        y = _INVERTIBLE[function][2](y)
    return y


def number_beside(function: str, x: np.ndarray, y: np.ndarray) -> tuple[str, bool, float] | None:
    """The operator and the number that make `y` of `x`, as `1 - mix` is made of mix, and True where the number is the
    first operand. None where `function` takes no number, or none gives all elements."""
    scale = float(np.abs(x).max(initial=0))
    if function not in _OF_NUMBERS or x.shape != y.shape or np.ptp(x) <= _DIFFERENT * scale:
        return None
    for op_type, first, solve, compute in _OF_NUMBERS[function]:
        with np.errstate(all="ignore"):
            exact = float(np.median(solve(x, y)))
            number = float(f"{exact:.5g}")
            number = number if abs(number - exact) <= _CLOSE * abs(exact) else exact
            found = compute(x, number)
        if np.isfinite(number) and np.allclose(found, y, rtol=0, atol=_CLOSE * np.abs(y).max()):
            return op_type, first, number
    return None


def is_close(found: np.ndarray, expected: np.ndarray) -> bool:
    """True if the elements are equal but for rounding."""
    return bool(np.allclose(found, expected, rtol=_CLOSE, atol=0))
