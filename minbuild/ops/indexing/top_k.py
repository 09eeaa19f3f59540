"""TopK: the largest or smallest elements along an axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import INT64, NUMBERS, Case, KernelFunction, Launch, Op, Site, Unknown
from minbuild.ops.core.graph_builder import Backward

top_k_kernel = KernelFunction(
    "top_k",
    ("values:T=?", "indices:int64=?", "x:T", "groups:extent", "heap:scratch"),
    params=("largest",),
    types={"T": NUMBERS},
)


def _count(site: Site) -> Dim:
    """How many: input 1, or the attribute of opset 1."""
    count = site.dims(1)[0] if site.has(1) else site.attribute("k")
    size = site.shape()[site.axis(-1)]
    if count is None or (isinstance(count, int) and isinstance(size, int) and not 0 <= count <= size):
        raise Unknown(f"it wants {count} of {size} elements")
    return count


def _infer(site: Site) -> Sequence[TensorType]:
    shape, axis = site.shape(), site.axis(-1)
    found = (*shape[:axis], _count(site), *shape[axis + 1 :])
    return TensorType(site.element(), found), TensorType(INT64, found)


def _reference(
    attributes: Mapping[str, Any], x: np.ndarray, k: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    axis, count = attributes.get("axis", -1), int(attributes["k"] if k is None else k.reshape(()).item())
    if attributes.get("largest", 1):
        flipped = np.argsort(np.flip(x, axis), axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(flipped, axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    indices = np.take(order, range(count), axis)
    return np.take_along_axis(x, indices, axis), indices


def _select(site: Site) -> Sequence[Launch]:
    shape, axis, count = site.shape(), site.axis(-1), _count(site)
    groups = (product(shape[:axis]), shape[axis], product(shape[axis + 1 :]), count)
    launch = top_k_kernel.launch(
        site.result(0),
        site.result(1),
        site.name(0),
        TensorType(ElementType.UINT8, groups),
        TensorType(ElementType.UINT8, (count * 4,)),
        types=(site.element(),),
        params=(int(site.attribute("largest", 1)),),
    )
    return (launch,)


def _gradient(b: Backward) -> Sequence[str]:
    """Elements that were taken pass the gradient on; indices have none."""
    if not b.dy[0]:
        return b.each()
    axis = b.site.axis(-1)
    return b.each(b.microsoft("GatherElementsGrad", b.dy[0], b.shape_of(b.x[0]), b.save(1), axis=axis))


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for shape, axis, count in (
        ((1,), 0, 1),
        ((9,), 0, 9),
        ((3, 40), -1, 5),
        ((3, 7), 0, 2),
        ((2, 6, 5), 1, 3),
        ((4, 3), 1, 0),
    ):
        for largest in (0, 1):
            x = random.standard_normal(shape)
            attributes = {"axis": axis, "largest": largest}
            name, k = f"{list(shape)} {count} {attributes}", np.array([count])
            yield Case(name, (x, k), attributes, frozenset({1}), outputs=2, ulps=0)
            ties = (x.round(), k)
            yield Case(f"{name} ties", ties, attributes, frozenset({1}), outputs=2, ulps=0, smooth=False)
    x, k = random.standard_normal((4, 6)), np.array([2])
    yield Case("indices only", (x, k), {}, frozenset({1}), 2, frozenset({0}), ulps=0)
    yield Case("values only", (x, k), {"sorted": 0}, frozenset({1}), 2, frozenset({1}), ulps=0)
    special = x.copy()
    special[1, 2:5] = np.nan, np.inf, -np.inf
    for largest in (0, 1):
        yield Case(
            f"not finite {largest}", (special, k), {"largest": largest}, frozenset({1}), outputs=2, ulps=0
        )
    for dtype in (np.int8, np.uint8, np.int64, np.uint64):
        numbers = random.integers(0, 100, (4, 6)).astype(dtype)
        yield Case(f"of {np.dtype(dtype)}", (numbers, k), {}, frozenset({1}), outputs=2, ulps=0)


top_k = Op(
    "TopK",
    since=(1, 10, 11, 24),
    infer=_infer,
    reference=_reference,
    select=_select,
    cases=_cases,
    gradient=_gradient,
)
