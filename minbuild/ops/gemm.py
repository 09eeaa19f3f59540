"""Gemm: the matrix product of dense layers and of their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.model import TensorType
from minbuild.ops.definition import FLOATS, Case, KernelFunction, Launch, Op, Site

gemm_kernel = KernelFunction(
    "gemm",
    ("y:T=", "a:T", "b:T", "c:T?"),
    params=("trans_a", "trans_b", "alpha", "beta"),
    types={"T": FLOATS},
    features={"bias": "adds a third operand", "bias_any": "which is not just a row"},
)


def _infer(site: Site) -> Sequence[TensorType]:
    a, b = site.shape(0), site.shape(1)
    rows = a[1] if site.attribute("transA", 0) else a[0]
    columns = b[0] if site.attribute("transB", 0) else b[1]
    return (TensorType(site.element(), (rows, columns)),)


def _reference(
    attributes: Mapping[str, Any], a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None
) -> np.ndarray:
    left = a.T if attributes.get("transA", 0) else a
    right = b.T if attributes.get("transB", 0) else b
    product = attributes.get("alpha", 1.0) * (left @ right)
    return product if c is None else product + attributes.get("beta", 1.0) * c


def _is_row(site: Site) -> bool:
    """Whether the third operand has one element for each column and nothing else."""
    shape = site.shape(2)
    return len(shape) in (1, 2) and shape[-1] == site.result_shape()[1] and shape[:-1] in ((), (1,))


def _select(site: Site) -> Sequence[Launch]:
    beta = float(site.attribute("beta", 1.0))
    bias = site.has(2) and beta != 0
    launch = gemm_kernel.launch(
        site.result(),
        site.name(0),
        site.name(1),
        site.name(2) if bias else "",
        types=(site.element(),),
        params=(
            site.attribute("transA", 0),
            site.attribute("transB", 0),
            float(site.attribute("alpha", 1.0)),
            beta,
        ),
        features=() if not bias else ("bias",) if _is_row(site) and beta == 1 else ("bias", "bias_any"),
        accumulate=site.accumulate,
    )
    return (launch,)


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for m, n, k in ((1, 1, 1), (1, 10, 33), (8, 10, 128), (5, 7, 3), (33, 19, 70), (6, 1, 40)):
        for trans_a, trans_b in ((0, 0), (0, 1), (1, 0), (1, 1)):
            a = random.standard_normal((k, m) if trans_a else (m, k))
            b = random.standard_normal((n, k) if trans_b else (k, n))
            attributes = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0}
            yield Case(f"{m}x{n}x{k} {trans_a}{trans_b}", (a, b), attributes, ulps=8)
            for shape in ((), (n,), (1, n), (m, 1), (m, n)):
                c = random.standard_normal(shape)
                yield Case(
                    f"{m}x{n}x{k} {trans_a}{trans_b} bias {list(shape)}", (a, b, c), attributes, ulps=8
                )


gemm = Op(
    "Gemm",
    since=(7, 9, 11, 13),
    infer=_infer,
    reference=_reference,
    select=_select,
    adds=frozenset({0}),
    cases=_cases,
)
