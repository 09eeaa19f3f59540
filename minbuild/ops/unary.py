"""Functions of one element: Neg, Abs, Sign, Log, Sqrt, Exp, Reciprocal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.definition import FLOATS, Case, KernelFunction, Launch, Op, Reference, Site, same_as


def _kernel(function: str) -> KernelFunction:
    return KernelFunction(function, ("y:T=", "x:T"), types={"T": FLOATS})


neg_kernel = _kernel("neg")
abs_kernel = _kernel("abs")
sign_kernel = _kernel("sign")
log_kernel = _kernel("log")
sqrt_kernel = _kernel("sqrt")
exp_kernel = _kernel("exp")
reciprocal_kernel = _kernel("reciprocal")


def _select(kernel: KernelFunction) -> Callable[[Site], Sequence[Launch]]:
    return lambda site: (kernel.launch(site.result(), site.name(0), types=(site.element(),)),)


def _reference(function: Callable[[Any], Any]) -> Reference:
    def reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(function(x))

    return reference


def _cases(positive: bool, ulps: float) -> Callable[[np.random.Generator], Iterable[Case]]:
    def cases(random: np.random.Generator) -> Iterable[Case]:
        for shape in ((), (1,), (7,), (3, 5), (2, 3, 4, 5)):
            x = random.standard_normal(shape)
            yield Case(f"shape {list(shape)}", (np.exp(x) if positive else x,), ulps=ulps)
        special = [0.0, -0.0, 1.0, np.inf, np.nan] + ([] if positive else [-1.0, -np.inf])
        yield Case("special values", (np.array(special),), ulps=ulps)

    return cases


def _op(name: str, kernel: KernelFunction, function: Callable[[Any], Any], positive: bool, ulps: float) -> Op:
    return Op(
        name,
        since=(6, 13),
        infer=same_as(0),
        reference=_reference(function),
        select=_select(kernel),
        in_place=((0, 0),),
        cases=_cases(positive, ulps),
    )


neg = _op("Neg", neg_kernel, np.negative, False, 0)
absolute = _op("Abs", abs_kernel, np.abs, False, 0)
sign = _op("Sign", sign_kernel, np.sign, False, 0)
log = _op("Log", log_kernel, np.log, True, 2)
sqrt = _op("Sqrt", sqrt_kernel, np.sqrt, True, 1)
exp = _op("Exp", exp_kernel, np.exp, False, 2)
reciprocal = _op("Reciprocal", reciprocal_kernel, lambda x: 1 / x, False, 1)
