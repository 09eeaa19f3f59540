"""InplaceClipGradNorm: limits the length of all gradients taken as one vector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import FLOATS, Case, KernelFunction, Launch, Op, Site, Unknown

clip_kernel = KernelFunction("clip_grad_norm", ("g:T=",), params=("max_norm",), types={"T": FLOATS})


def _infer(site: Site) -> Sequence[TensorType]:
    kind = site.attribute("norm_type", "fro")
    if kind != "fro":
        raise Unknown(f"norm_type '{kind}' is not supported; only 'fro' is")
    return (TensorType(site.element(), site.shape()),)


def _reference(attributes: Mapping[str, Any], g: np.ndarray) -> np.ndarray:
    return g * min(1.0, attributes.get("max_norm", 1.0) / (np.sqrt((g * g).sum()) + float(np.float32(1e-6))))


def _select(site: Site) -> Sequence[Launch]:
    # Output and input are the same gradients.
    limit = float(site.attribute("max_norm", 1.0))
    return (clip_kernel.launch(site.name(0), types=(site.element(),), params=(limit,)),)


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for count in (1, 9, 1024, 5000):
        for limit in (0.5, 1e6):
            yield Case(
                f"{count} up to {limit}", (random.standard_normal(count),), {"max_norm": limit}, ulps=8
            )


clip_grad_norm = Op(
    "InplaceClipGradNorm",
    domain="com.microsoft",
    infer=_infer,
    reference=_reference,
    select=_select,
    updates={0: 0},
    cases=_cases,
)
