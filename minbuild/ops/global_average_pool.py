"""GlobalAveragePool: the mean over all spatial axes, by the kernel of ReduceMean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.dims import product
from minbuild.model import TensorType
from minbuild.ops.definition import Case, Launch, Op, Site
from minbuild.ops.reduce import reduce_kernel as _imported_reduce_kernel


def _infer(site: Site) -> Sequence[TensorType]:
    shape = site.shape()
    return (TensorType(site.element(), shape[:2] + (1,) * (len(shape) - 2)),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return x.mean(tuple(range(2, x.ndim)), keepdims=True)


def _select(site: Site) -> Sequence[Launch]:
    shape = site.shape()
    groups = (1, product(shape[:2]), product(shape[2:]), 1)
    launch = _imported_reduce_kernel.launch(
        site.result(),
        site.name(0),
        TensorType(site.element(), groups),
        types=(site.element(),),
        params=(1,),
        features=("mean", "rows"),
    )
    return (launch,)


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for shape in ((1, 1, 1, 1), (2, 3, 5), (3, 4, 7, 7), (1, 6, 8, 8), (2, 3, 2, 3, 4)):
        yield Case(f"{list(shape)}", (random.standard_normal(shape),), ulps=16)


global_average_pool = Op(
    "GlobalAveragePool", infer=_infer, reference=_reference, select=_select, cases=_cases
)
