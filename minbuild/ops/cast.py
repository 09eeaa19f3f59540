"""Cast between element types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.model import ElementType, TensorType
from minbuild.ops.definition import BOOL, FLOATS, INDICES, Case, KernelFunction, Launch, Site
from minbuild.ops.pattern import Match, Replacement, Rewrite, RewritingOp

_TYPES = (*FLOATS, *INDICES, BOOL)
cast_kernel = KernelFunction("cast", ("y:U=", "x:T"), types={"U": _TYPES, "T": _TYPES})


def _infer(site: Site) -> Sequence[TensorType]:
    return (TensorType(ElementType(site.attribute("to")), site.shape()),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    to = ElementType(attributes["to"])
    if x.dtype == object:
        if to not in INDICES:
            raise TypeError("dimensions are whole numbers")
        return x
    return x.astype(to.dtype)


def _select(site: Site) -> Sequence[Launch]:
    to = ElementType(site.attribute("to"))
    return (cast_kernel.launch(site.result(), site.name(0), types=(to, site.element())),)


def _nothing_to_do(match: Match) -> Replacement | None:
    return Replacement(":Identity", ("x",), {}) if match.types["x"] == match.result else None


def _cases(random: np.random.Generator) -> Iterable[Case]:
    x = np.array([[0.0, 0.25, -0.75], [1.5, -2.5, 3.0], [100.25, -1e6, 1e6]])
    sources = {"float": x, "int32": x.astype(np.int32), "int64": x.astype(np.int64), "bool": x > 0}
    for name, source in sources.items():
        for to in _TYPES:
            yield Case(f"{name} to {to.label}", (source,), {"to": int(to)}, ulps=0)
    yield Case("no number is true", (np.array([np.nan, np.inf, -0.0]),), {"to": int(BOOL)})


cast = RewritingOp(
    "Cast",
    since=(6, 9, 13, 19),
    infer=_infer,
    reference=_reference,
    select=_select,
    cases=_cases,
    rewrites=(Rewrite(("Cast", "x"), _nothing_to_do),),
)
