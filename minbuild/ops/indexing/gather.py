"""Gather: slices of a tensor by index, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import (
    FLOATS,
    INDICES,
    STORED,
    Case,
    KernelFunction,
    Launch,
    Op,
    Site,
    stored,
)
from minbuild.ops.core.graph_builder import Backward

gather_kernel = KernelFunction(
    "gather", ("y:T=", "x:T", "indices:I", "groups:extent"), types={"T": STORED, "I": INDICES}
)
grad_kernel = KernelFunction(
    "gather_grad", ("dx:T=", "dy:T", "indices:I", "groups:extent"), types={"T": FLOATS, "I": INDICES}
)


def _infer(site: Site) -> Sequence[TensorType]:
    shape, axis = site.shape(0), site.axis()
    return (TensorType(site.element(0), shape[:axis] + site.shape(1) + shape[axis + 1 :]),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.take(x, indices.astype(np.int64), axis=attributes.get("axis", 0))


def _groups(site: Site, shape: Shape) -> TensorType:
    """The whole tensor as [before the axis, axis, behind it]."""
    axis = int(site.attribute("axis", 0))
    axis += len(shape) if axis < 0 else 0
    return TensorType(ElementType.UINT8, (product(shape[:axis]), shape[axis], product(shape[axis + 1 :])))


def _select(site: Site) -> Sequence[Launch]:
    launch = gather_kernel.launch(
        site.result(),
        site.name(0),
        site.name(1),
        _groups(site, site.shape(0)),
        types=(stored(site.element(0)), site.element(1)),
    )
    return (launch,)


def _variants(
    random: np.random.Generator,
) -> Iterable[tuple[str, tuple[int, ...], np.ndarray, Mapping[str, int]]]:
    for shape, axis, count in (
        ((5,), 0, ()),
        ((5, 3), 0, (4,)),
        ((7, 33), 0, (2, 6)),
        ((3, 5, 4), 1, ()),
        ((2, 6, 5), -2, (3, 2)),
        ((4, 9), 1, (12,)),
        ((2, 3, 2, 1), 2, (1,)),
        ((3, 2), 0, (0,)),
    ):
        for dtype in (np.int64, np.int32):
            size = shape[axis]
            indices = random.integers(-size, size, count).astype(dtype)
            yield f"{list(shape)} axis {axis} {np.dtype(dtype)}", shape, np.asarray(indices), {"axis": axis}


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for name, shape, indices, attributes in _variants(random):
        constant = frozenset({1} if indices.size == 0 else ())
        yield Case(name, (random.standard_normal(shape), indices), attributes, constant, ulps=0)
    numbers = random.integers(-9, 9, (6, 4))
    for dtype in (np.int64, np.int32, np.bool_, np.int8, np.float16):
        yield Case(f"of {np.dtype(dtype)}", (numbers.astype(dtype), np.array([[0, 5], [3, -1]])), ulps=0)


def _gradient(b: Backward) -> Sequence[str]:
    """Every element gets what came from its copies."""
    axis = b.site.axis()
    return b.each(b.microsoft("GatherGrad", b.shape_of(b.x[0]), b.x[1], b.dy[0], axis=axis))


gather = Op(
    "Gather",
    since=(1, 11, 13),
    infer=_infer,
    reference=_reference,
    select=_select,
    cases=_cases,
    gradient=_gradient,
)
shrunken_gather = replace(gather, name="ShrunkenGather", domain="com.microsoft", since=(1,))


def _grad_infer(site: Site) -> Sequence[TensorType]:
    return (TensorType(site.element(2), site.dims(0)),)


def _grad_reference(
    attributes: Mapping[str, Any], shape: np.ndarray, indices: np.ndarray, dy: np.ndarray
) -> np.ndarray:
    dx = np.zeros(tuple(int(d) for d in shape))
    axis = attributes.get("axis", 0) % dx.ndim
    slices = np.moveaxis(dy.reshape(dx.shape[:axis] + (-1,) + dx.shape[axis + 1 :]), axis, 0)
    np.add.at(np.moveaxis(dx, axis, 0), indices.ravel(), slices)
    return dx


def _grad_select(site: Site) -> Sequence[Launch]:
    launch = grad_kernel.launch(
        site.result(),
        site.name(2),
        site.name(1),
        _groups(site, site.result_shape()),
        types=(site.element(2), site.element(1)),
        accumulate=site.accumulate,
    )
    return (launch,)


def _grad_gradient(b: Backward) -> Sequence[str]:
    return b.each("", "", b.add("Gather", b.dy[0], b.x[1], axis=int(b.site.attribute("axis", 0))))


def _grad_cases(random: np.random.Generator) -> Iterable[Case]:
    for name, shape, indices, attributes in _variants(random):
        if indices.size == 0:
            continue
        dy = random.standard_normal(np.take(np.zeros(shape), indices, axis=attributes["axis"]).shape)
        yield Case(name, (np.array(shape), indices, dy), attributes, frozenset({0}), ulps=16)


gather_grad = Op(
    "GatherGrad",
    domain="com.microsoft",
    infer=_grad_infer,
    reference=_grad_reference,
    select=_grad_select,
    adds=frozenset({0}),
    cases=_grad_cases,
    gradient=_grad_gradient,
)
