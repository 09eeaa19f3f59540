"""Sigmoid and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.definition import FLOATS, Case, KernelFunction, Launch, Op, Site, same_as

sigmoid_kernel = KernelFunction("sigmoid", ("y:T=", "x:T"), types={"T": FLOATS})
sigmoid_grad_kernel = KernelFunction("sigmoid_grad", ("dx:T=", "dy:T", "y:T"), types={"T": FLOATS})


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _select(site: Site) -> Sequence[Launch]:
    return (sigmoid_kernel.launch(site.result(), site.name(0), types=(site.element(),)),)


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for shape in ((), (1,), (7,), (3, 5), (2, 3, 4, 5)):
        yield Case(f"shape {list(shape)}", (random.standard_normal(shape) * 3,), ulps=4)
    yield Case("far out", (np.array([0.0, -30.0, 30.0, -700.0, 700.0, np.inf, -np.inf, np.nan]),), ulps=4)


sigmoid = Op(
    "Sigmoid",
    since=(6, 13),
    infer=same_as(0),
    reference=_reference,
    select=_select,
    in_place=((0, 0),),
    cases=_cases,
)


def _grad_reference(attributes: Mapping[str, Any], dy: np.ndarray, y: np.ndarray) -> np.ndarray:
    return dy * y * (1 - y)


def _grad_select(site: Site) -> Sequence[Launch]:
    return (sigmoid_grad_kernel.launch(site.result(), site.name(0), site.name(1), types=(site.element(),)),)


def _grad_cases(random: np.random.Generator) -> Iterable[Case]:
    for shape in ((), (1,), (9,), (4, 6), (2, 3, 5, 5)):
        dy, y = random.standard_normal(shape), random.uniform(0.1, 0.7, shape)
        yield Case(f"shape {list(shape)}", (dy, y), ulps=4)


sigmoid_grad = Op(
    "SigmoidGrad",
    domain="com.microsoft",
    infer=same_as(0),
    reference=_grad_reference,
    select=_grad_select,
    in_place=((0, 0), (0, 1)),
    cases=_grad_cases,
)
