"""Sums and means over axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from minbuild.dims import Dim, product
from minbuild.model import Shape, TensorType
from minbuild.ops.definition import FLOATS, Case, KernelFunction, Launch, Op, Site, Unknown, normalized_axes

reduce_kernel = KernelFunction(
    "reduce",
    ("y:T=", "x:T", "groups:extent"),
    params=("mean",),
    types={"T": FLOATS},
    features={
        "mean": "divides by the number of elements",
        "rows": "reduces over the last axes",
        "columns": "keeps the last axes",
    },
)


def reduce_over(
    result: str,
    source: str,
    tensor: TensorType,
    axes: Iterable[int],
    *,
    mean: bool = False,
    accumulate: int = 0,
) -> Launch:
    """The launch that sums, or averages, `source` of type `tensor` over `axes`. Other operators use it too.
    Raises Unknown where reduced and kept axes alternate too often."""
    groups = _groups(tensor.shape or (), set(axes))
    asked = {"mean": mean, "rows": groups[4] != 1, "columns": groups[4] == 1}
    return reduce_kernel.launch(
        result,
        source,
        TensorType(tensor.element, groups),
        types=(tensor.element,),
        params=(int(mean),),
        features=tuple(name for name, wanted in asked.items() if wanted),
        accumulate=accumulate,
    )


def _axes(site: Site) -> tuple[int, ...]:
    given = tuple(int(a) for a in site.dims(1)) if site.has(1) else tuple(site.attribute("axes", ()))  # type: ignore[arg-type]
    if not given:
        return () if site.attribute("noop_with_empty_axes", 0) else tuple(range(site.rank()))
    return normalized_axes(given, site.rank())


def _infer(site: Site) -> Sequence[TensorType]:
    axes = _axes(site)
    keep = site.attribute("keepdims", 1)
    shape = [1 if i in axes else d for i, d in enumerate(site.shape()) if keep or i not in axes]
    return (TensorType(site.element(), tuple(shape)),)


def _groups(shape: Shape, axes: set[int]) -> tuple[Dim, ...]:
    """The input as [reduced, kept, reduced, kept, reduced]: neighbours of one kind folded together, ones left out, and
    as much as possible at the end, where sums run over contiguous elements."""
    sizes = [(i in axes, d) for i, d in enumerate(shape) if d != 1]
    folded = [(kind, product([d for _, d in run])) for kind, run in groupby(sizes, key=lambda s: s[0])]
    groups: list[Dim] = []
    for kind in (True, False, True, False, True):
        groups.insert(0, folded.pop()[1] if folded and folded[-1][0] == kind else 1)
    if folded:
        raise Unknown(f"reduces axes {sorted(axes)} of {list(shape)}, which alternate too often")
    return tuple(groups)


def _select(mean: bool) -> Callable[[Site], Sequence[Launch]]:
    def select(site: Site) -> Sequence[Launch]:
        tensor = TensorType(site.element(), site.shape())
        return (
            reduce_over(
                site.result(), site.name(0), tensor, _axes(site), mean=mean, accumulate=site.accumulate
            ),
        )

    return select


def _reference(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    def reference(attributes: Mapping[str, Any], x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
        given = tuple(axes.tolist()) if axes is not None else tuple(attributes.get("axes", ()))
        if not given and attributes.get("noop_with_empty_axes", 0):
            return x
        return np.asarray(function(x, axis=given or None, keepdims=bool(attributes.get("keepdims", 1))))

    return reference


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for shape, axes in (
        ((5,), (0,)),
        ((3, 7), (0,)),
        ((3, 7), (1,)),
        ((2, 3, 5, 7), (0, 2, 3)),
        ((2, 3, 4, 5), (1, 3)),
        ((2, 3, 4, 5), (0, 2)),
        ((4, 33), (-2, -1)),
        ((1, 6, 1), (0, 2)),
    ):
        for keepdims in (0, 1):
            x = random.standard_normal(shape)
            inputs = (x, np.array(axes, np.int64))
            yield Case(f"{list(shape)} over {axes}", inputs, {"keepdims": keepdims}, frozenset({1}), ulps=16)
    yield Case("all axes", (random.standard_normal((6, 5)),), {"keepdims": 0}, ulps=32)


reduce_sum = Op(
    "ReduceSum",
    since=(1, 11, 13),
    infer=_infer,
    reference=_reference(np.sum),
    select=_select(mean=False),
    adds=frozenset({0}),
    cases=_cases,
)
reduce_mean = Op(
    "ReduceMean",
    since=(1, 11, 13, 18),
    infer=_infer,
    reference=_reference(np.mean),
    select=_select(mean=True),
    adds=frozenset({0}),
    cases=_cases,
)
