"""Softmax and LogSoftmax, their gradients, and Hardmax."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import ceil_div, product
from minbuild.ops.core.definition import (
    FLOATS,
    INT64,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    same_as,
)
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results

_WHOLE = 8  # kWholeRow of the kernel: its rows hold whole vectors
_FEATURES = {
    "log": "logarithms",
    "apart": "over an axis that is not the last, or short and no multiple of 8 long",
    "rows": "of long rows that are no multiple of 8 long",
    "together": "several long rows at once",
}
_HINTS = frozenset({"together"})
_LONG = 64  # elements of a row from which on it pays to copy its last vector only
softmax_kernel = KernelFunction(
    "softmax",
    ("y:T=", "x:T", "groups:extent", "apart:T=?"),
    ("log:int",),
    {"T": FLOATS},
    _FEATURES,
    hints=_HINTS,
    cut=("y", "x", "groups"),
)
grad_kernel = KernelFunction(
    "softmax_grad",
    ("dx:T=", "dy:T", "y:T", "groups:extent", "apart:T=?"),
    ("log:int",),
    {"T": FLOATS},
    _FEATURES,
    hints=_HINTS,
    cut=("dx", "dy", "y", "groups"),
)


def _axis(attributes: Mapping[str, Any], rank: int, flat: bool) -> int:
    axis = int(attributes.get("axis", 1 if flat else -1))
    return axis + rank if axis < 0 else axis


def _lower(
    kernel: KernelFunction, inputs: int, log: bool, is_flat: Callable[[OpContext], bool]
) -> Callable[[OpContext], Sequence[KernelCall]]:
    """Before opset 13 the softmax goes over everything from the axis on, since then over the axis alone."""

    def lower(ctx: OpContext) -> Sequence[KernelCall]:
        shape, flat = ctx.shape(), is_flat(ctx)
        axis = _axis(ctx.attributes, len(shape), flat)
        behind = len(shape) if flat else axis + 1
        groups = (product(shape[:axis]), product(shape[axis:behind]), product(shape[behind:]))
        apart = groups[2] != 1 or not isinstance(groups[1], int) or groups[1] % _WHOLE != 0
        long = groups[2] == 1 and isinstance(groups[1], int) and groups[1] >= _LONG
        rows, together = apart and long, long and not log
        apart = apart and not rows
        whole = ceil_div(groups[1], _WHOLE) * _WHOLE
        call = kernel.call(
            ctx.result(),
            *ctx.names[:inputs],
            TensorType(ElementType.UINT8, groups),
            TensorType(ctx.element(), (inputs * whole,)) if apart else None,
            types=(ctx.element(),),
            params=(int(log),),
            features=("log",) * log + ("apart",) * apart + ("rows",) * rows + ("together",) * together,
        )
        return (call,)

    return lower


def _softmax(x: np.ndarray, axes: tuple[int, ...], log: bool) -> np.ndarray:
    shifted = x - x.max(axes, keepdims=True)
    power = np.exp(shifted)
    total = power.sum(axes, keepdims=True)
    return shifted - np.log(total) if log else power / total


def _softmax_grad(dy: np.ndarray, y: np.ndarray, axes: tuple[int, ...], log: bool) -> np.ndarray:
    if log:
        return dy - np.exp(y) * dy.sum(axes, keepdims=True)
    return (dy - (dy * y).sum(axes, keepdims=True)) * y


def _reference(
    function: Callable[..., np.ndarray], log: bool, flat: bool = False
) -> Callable[..., np.ndarray]:
    def reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> np.ndarray:
        rank = inputs[0].ndim
        axis = _axis(attributes, rank, flat)
        return function(*inputs, tuple(range(axis, rank if flat else axis + 1)), log)

    return reference


_SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1,), 0),
    ((3, 1), -1),
    ((4, 10), -1),
    ((2, 33), 1),
    ((3, 197), 1),
    ((2, 3, 16), 2),
    ((3, 5, 4), 1),
    ((2, 6, 5, 7), -3),
    ((7, 2), 0),
)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axis in _SHAPES:
        yield TestCase(
            f"{list(shape)} axis {axis}", (random.standard_normal(shape) * 5,), {"axis": axis}, ulps=8
        )
    yield TestCase("large", (random.standard_normal((3, 9)) * 1000,), ulps=8)


def _grad_cases(log: bool, flat: bool) -> Callable[[np.random.Generator], Iterable[TestCase]]:
    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for shape, axis in _SHAPES:
            axes = tuple(range(axis % len(shape), len(shape))) if flat else (axis,)
            y = _softmax(random.standard_normal(shape) * 2, axes, log)
            inputs = (random.standard_normal(shape), y)
            yield TestCase(f"{list(shape)} axis {axis}", inputs, {"axis": axis}, ulps=16)

    return cases


def _before_13(ctx: OpContext) -> bool:
    return ctx.version < 13


def _forward_gradient(log: bool) -> Callable[[GradientBuilder], Results]:
    """The gradient operators say by their name how the axis counts."""
    stem = "LogSoftmaxGrad" if log else "SoftmaxGrad"

    def gradient(b: GradientBuilder) -> Results:
        flat = _before_13(b.ctx)
        axis = _axis(b.ctx.attributes, b.ctx.rank(), flat)
        return b.microsoft(stem if flat else f"{stem}_13", b.dy[0], b.y[0], axis=axis)

    return gradient


def _op(name: str, log: bool) -> Op:
    return Op(
        name,
        since=(1, 11, 13),
        infer=same_as(0),
        reference=_reference(_softmax, log=log),
        lower=_lower(softmax_kernel, 1, log, _before_13),
        kernels=(softmax_kernel,),
        in_place=((0, 0),),
        cases=_cases,
        gradient=_forward_gradient(log),
    )


softmax = _op("Softmax", log=False)
log_softmax = _op("LogSoftmax", log=True)


def _second_gradient(log: bool, flat: bool) -> Callable[[GradientBuilder], Results]:
    """Of dx = (dy - sum dy y) y, or dx = dy - e^y sum dy, with respect to dy and y."""

    def gradient(b: GradientBuilder) -> Results:
        (dy, y), (g,) = b.x, b.dy
        axis = _axis(b.ctx.attributes, b.ctx.rank(), flat)
        axes = tuple(range(axis, b.ctx.rank() if flat else axis + 1))
        total = (dy if log else dy * y).sum(axes)
        power = y.exp() if log else y
        onto = g * power
        gathered = onto.sum(axes)
        if log:
            to_dy = g - gathered
            to_y = -(onto * total)
        else:
            to_dy = (g - gathered) * y
            to_y = g * (dy - total) - dy * gathered
        return (to_dy, to_y)

    return gradient


def _grad_op(name: str, log: bool, flat: bool) -> Op:
    return Op(
        name,
        domain=MICROSOFT,
        infer=same_as(0),
        reference=_reference(_softmax_grad, log, flat),
        lower=_lower(grad_kernel, 2, log, lambda ctx: flat),
        kernels=(grad_kernel,),
        in_place=((0, 0), (0, 1)),
        cases=_grad_cases(log, flat),
        gradient=_second_gradient(log, flat),
    )


softmax_grad = _grad_op("SoftmaxGrad_13", log=False, flat=False)
log_softmax_grad = _grad_op("LogSoftmaxGrad_13", log=True, flat=False)
flat_softmax_grad = _grad_op("SoftmaxGrad", log=False, flat=True)
flat_log_softmax_grad = _grad_op("LogSoftmaxGrad", log=True, flat=True)

# ---------------------------------------------------------------------------------------------------- Hardmax


def _hardmax_body(b: GraphBuilder) -> Results:
    """1 where the first largest element along the axis is, before opset 13 along all axes from there on."""
    flat, shape = _before_13(b.ctx), b.ctx.shape()
    axis = _axis(b.ctx.attributes, len(shape), flat)
    classes = product(shape[axis:]) if flat else shape[axis]
    if not isinstance(classes, int):
        raise UnsupportedUse(
            "the number of classes must be known when the trainer is built; fix it with --dim"
        )
    behind = 0 if flat else len(shape) - axis - 1
    x = b.add("Flatten", b.x[0], axis=axis) if flat else b.x[0]
    place = b.add("ArgMax", x, axis=1 if flat else axis, keepdims=1)
    numbers = np.arange(classes).reshape((-1,) + (1,) * behind)
    y = place.equal(b.constant(numbers, INT64)).cast(b.ctx.element())
    return y.reshape_like(b.x[0]) if flat else y


def _hardmax_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    axis = _axis(attributes, x.ndim, False)
    place = np.expand_dims(x.argmax(axis), axis)
    numbers = np.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    return (place == numbers).astype(x.dtype)


def _hardmax_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axis in _SHAPES:
        yield TestCase(f"{list(shape)} axis {axis}", (random.standard_normal(shape),), {"axis": axis})
    yield TestCase("ties", (np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]),))


hardmax = Op(
    "Hardmax",
    since=(1, 11, 13),
    reference=_hardmax_reference,
    decompose=_hardmax_body,
    decomposes_to=("ArgMax", "Cast", "Equal"),
    cases=_hardmax_cases,
)

KERNELS = (softmax_kernel, grad_kernel)
OPS = (
    softmax,
    log_softmax,
    softmax_grad,
    log_softmax_grad,
    flat_softmax_grad,
    flat_log_softmax_grad,
    hardmax,
)
