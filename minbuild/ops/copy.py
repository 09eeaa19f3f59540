"""Copy: bytes of their own for a value that would otherwise be a view of what the caller lent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.definition import STORED, Case, KernelFunction, Launch, Op, Site, same_as, stored

copy_kernel = KernelFunction("copy", ("y:T=", "x:T"), types={"T": STORED})


def _select(site: Site) -> Sequence[Launch]:
    return (copy_kernel.launch(site.result(), site.name(0), types=(stored(site.element()),)),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return x


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for shape in ((), (7,), (2, 3, 5)):
        for dtype in (np.float64, np.int8, np.int16, np.uint32, np.bool_):
            x = random.integers(0, 2, shape).astype(dtype)
            yield Case(f"{np.dtype(dtype)} {list(shape)}", (x,), ulps=0)


copy = Op("Copy", domain="minbuild", infer=same_as(0), reference=_reference, select=_select, cases=_cases)
