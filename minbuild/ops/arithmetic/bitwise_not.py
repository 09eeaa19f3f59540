"""BitwiseNot: the complement of every bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import STORED, Case, KernelFunction, Launch, Op, Site, same_as, stored

bitwise_not_kernel = KernelFunction("bitwise_not", ("y:T=", "x:T"), types={"T": STORED})


def _select(site: Site) -> Sequence[Launch]:
    return (bitwise_not_kernel.launch(site.result(), site.name(0), types=(stored(site.element()),)),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    if x.dtype == object:
        raise TypeError("dimensions have no bits")
    return np.asarray(np.invert(x))


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for bits in (8, 16, 32, 64):
        for kind in (f"int{bits}", f"uint{bits}"):
            bounds = np.iinfo(kind)
            for shape in ((), (9,), (2, 3)):
                x = random.integers(bounds.min, bounds.max, shape, dtype=kind, endpoint=True)
                yield Case(f"{kind} {list(shape)}", (np.asarray(x),), ulps=0)


bitwise_not = Op(
    "BitwiseNot",
    since=(18,),
    infer=same_as(0),
    reference=_reference,
    select=_select,
    in_place=((0, 0),),
    cases=_cases,
)
