"""Relu and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.body import Backward
from minbuild.ops.definition import FLOATS, Case, KernelFunction, Launch, Op, Site, itself, same_as

relu_kernel = KernelFunction("relu", ("y:T=", "x:T"), types={"T": FLOATS})
relu_grad_kernel = KernelFunction("relu_grad", ("dx:T=", "dy:T", "x:T"), types={"T": FLOATS})


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def _select(site: Site) -> Sequence[Launch]:
    return (relu_kernel.launch(site.result(), site.name(0), types=(site.element(),)),)


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for shape in ((), (1,), (7,), (3, 5), (2, 3, 4, 5)):
        yield Case(f"shape {list(shape)}", (random.standard_normal(shape),), ulps=0)


def _gradient(b: Backward) -> Sequence[str]:
    """The output is positive where the input is, and is kept anyway by what reads it."""
    return (b.microsoft("ReluGrad", b.dy[0], b.y[0]),)


relu = Op(
    "Relu",
    since=(6, 13, 14),
    infer=same_as(0),
    reference=_reference,
    select=_select,
    in_place=((0, 0),),
    again=itself,
    cases=_cases,
    gradient=_gradient,
)


def _grad_reference(attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, dy, 0)


def _grad_select(site: Site) -> Sequence[Launch]:
    return (relu_grad_kernel.launch(site.result(), site.name(0), site.name(1), types=(site.element(),)),)


def _grad_cases(random: np.random.Generator) -> Iterable[Case]:
    for shape in ((1,), (9,), (4, 6), (2, 3, 5, 5)):
        dy, x = random.standard_normal(shape), np.maximum(random.standard_normal(shape), 0)
        yield Case(f"shape {list(shape)}", (dy, x), ulps=0)


relu_grad = Op(
    "ReluGrad",
    domain="com.microsoft",
    infer=same_as(0),
    reference=_grad_reference,
    select=_grad_select,
    in_place=((0, 0), (0, 1)),
    cases=_grad_cases,
)
