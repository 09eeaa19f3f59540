"""BitwiseAnd, BitwiseOr, BitwiseXor and BitShift with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType
from minbuild.ops.core.broadcasting import (
    AXES,
    WALK,
    call_binary,
    integer_operands,
    joint_type,
    lower_binary,
)
from minbuild.ops.core.definition import (
    INTEGERS,
    UNSIGNED,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
)


def _kernel(function: str, types: tuple[ElementType, ...] = UNSIGNED) -> KernelFunction:
    return KernelFunction(function, ("y:T=", "a:T", "b:T", WALK), params=AXES, types={"T": types})


and_kernel = _kernel("bit_and")
or_kernel = _kernel("bit_or")
xor_kernel = _kernel("bit_xor")
shift_left_kernel = _kernel("shift_left")
shift_right_kernel = _kernel("shift_right", INTEGERS)


def _reference(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    def reference(attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray(function(a, b))

    return reference


def _shift_reference(attributes: Mapping[str, Any], x: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """A negative amount shifts out all bits; shifts to the right extend the sign of negative numbers."""
    bits = x.dtype.itemsize * 8
    far = (amount < 0) | (amount.astype(np.float64) >= bits)
    near = np.where(far, 0, amount).astype(x.dtype)
    if attributes["direction"] == "LEFT":
        return np.where(far, np.zeros_like(x), np.left_shift(x, near))
    return np.where(far, np.where(x < 0, -1, 0).astype(x.dtype), np.right_shift(x, near))


def _lower_shift(ctx: OpContext) -> Sequence[KernelCall]:
    left = ctx.attribute("direction") == "LEFT"
    return (call_binary(shift_left_kernel if left else shift_right_kernel, ctx),)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, a, b in integer_operands(random):
        yield TestCase(name, (a, b))


def _shift_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for direction in ("LEFT", "RIGHT"):
        for name, a, b in integer_operands(random):
            yield TestCase(f"{name} {direction}", (a, b), {"direction": direction})


def _op(name: str, kernel: KernelFunction, function: Callable[..., Any]) -> Op:
    return Op(
        name,
        since=(18,),
        infer=joint_type,
        reference=_reference(function),
        lower=lower_binary(kernel),
        kernels=(kernel,),
        in_place=((0, 0), (0, 1)),
        cases=_cases,
    )


bitwise_and = _op("BitwiseAnd", and_kernel, np.bitwise_and)
bitwise_or = _op("BitwiseOr", or_kernel, np.bitwise_or)
bitwise_xor = _op("BitwiseXor", xor_kernel, np.bitwise_xor)
shift = Op(
    "BitShift",
    since=(11, 28),
    infer=joint_type,
    reference=_shift_reference,
    lower=_lower_shift,
    kernels=(shift_left_kernel, shift_right_kernel),
    in_place=((0, 0), (0, 1)),
    cases=_shift_cases,
)

KERNELS = (and_kernel, or_kernel, xor_kernel, shift_left_kernel, shift_right_kernel)
OPS = (bitwise_and, bitwise_or, bitwise_xor, shift)
