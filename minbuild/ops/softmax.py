"""Softmax and LogSoftmax, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.dims import product
from minbuild.model import ElementType, TensorType
from minbuild.ops.definition import FLOATS, Case, KernelFunction, Launch, Op, Site, same_as

_FEATURES = {"log": "logarithms"}
softmax_kernel = KernelFunction(
    "softmax", ("y:T=", "x:T", "groups:extent"), ("log",), {"T": FLOATS}, _FEATURES
)
grad_kernel = KernelFunction(
    "softmax_grad", ("dx:T=", "dy:T", "y:T", "groups:extent"), ("log",), {"T": FLOATS}, _FEATURES
)


def _axis(attributes: Mapping[str, Any], rank: int, flat: bool) -> int:
    axis = int(attributes.get("axis", 1 if flat else -1))
    return axis + rank if axis < 0 else axis


def _select(
    kernel: KernelFunction, inputs: int, log: bool, is_flat: Callable[[Site], bool]
) -> Callable[[Site], Sequence[Launch]]:
    """Before opset 13 the softmax goes over everything from the axis on, since then over the axis alone."""

    def select(site: Site) -> Sequence[Launch]:
        shape, flat = site.shape(), is_flat(site)
        axis = _axis(site.attributes, len(shape), flat)
        behind = len(shape) if flat else axis + 1
        groups = (product(shape[:axis]), product(shape[axis:behind]), product(shape[behind:]))
        launch = kernel.launch(
            site.result(),
            *site.names[:inputs],
            TensorType(ElementType.UINT8, groups),
            types=(site.element(),),
            params=(int(log),),
            features=("log",) * log,
        )
        return (launch,)

    return select


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
    ((2, 3, 16), 2),
    ((3, 5, 4), 1),
    ((2, 6, 5, 7), -3),
    ((7, 2), 0),
)


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for shape, axis in _SHAPES:
        yield Case(f"{list(shape)} axis {axis}", (random.standard_normal(shape) * 5,), {"axis": axis}, ulps=8)
    yield Case("large", (random.standard_normal((3, 9)) * 1000,), ulps=8)


def _grad_cases(log: bool, flat: bool) -> Callable[[np.random.Generator], Iterable[Case]]:
    def cases(random: np.random.Generator) -> Iterable[Case]:
        for shape, axis in _SHAPES:
            axes = tuple(range(axis % len(shape), len(shape))) if flat else (axis,)
            y = _softmax(random.standard_normal(shape) * 2, axes, log)
            inputs = (random.standard_normal(shape), y)
            yield Case(f"{list(shape)} axis {axis}", inputs, {"axis": axis}, ulps=16)

    return cases


def _before_13(site: Site) -> bool:
    return site.version < 13


softmax = Op(
    "Softmax",
    since=(1, 11, 13),
    infer=same_as(0),
    reference=_reference(_softmax, log=False),
    select=_select(softmax_kernel, 1, False, _before_13),
    in_place=((0, 0),),
    cases=_cases,
)
log_softmax = Op(
    "LogSoftmax",
    since=(1, 11, 13),
    infer=same_as(0),
    reference=_reference(_softmax, log=True),
    select=_select(softmax_kernel, 1, True, _before_13),
    in_place=((0, 0),),
    cases=_cases,
)


def _gradient(name: str, log: bool, flat: bool) -> Op:
    """com.microsoft gradients say by their name how the axis counts."""
    return Op(
        name,
        domain="com.microsoft",
        infer=same_as(0),
        reference=_reference(_softmax_grad, log, flat),
        select=_select(grad_kernel, 2, log, lambda site: flat),
        in_place=((0, 0), (0, 1)),
        cases=_grad_cases(log, flat),
    )


softmax_grad = _gradient("SoftmaxGrad_13", log=False, flat=False)
log_softmax_grad = _gradient("LogSoftmaxGrad_13", log=True, flat=False)
flat_softmax_grad = _gradient("SoftmaxGrad", log=False, flat=True)
flat_log_softmax_grad = _gradient("LogSoftmaxGrad", log=True, flat=True)
