"""Operators whose output has the bytes of their input: they cost nothing on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.dims import Dim, divide_exactly, product
from minbuild.model import Shape, TensorType
from minbuild.ops.definition import Op, Site, Unknown, normalized_axes, same_as


def _shaped(site: Site, shape: Shape) -> Sequence[TensorType]:
    return (TensorType(site.element(), shape),)


def _reshape_shape(site: Site) -> Shape:
    shape, wanted = site.shape(), site.dims(1)
    keep_zero = bool(site.attribute("allowzero", 0))
    dims: list[Dim] = [shape[i] if d == 0 and not keep_zero else d for i, d in enumerate(wanted)]
    if -1 in dims:
        at = dims.index(-1)
        rest = divide_exactly(product(shape), product(dims[:at] + dims[at + 1 :]))
        if rest is None:
            raise Unknown(f"cannot tell what -1 stands for when {list(shape)} becomes {list(wanted)}")
        dims[at] = rest
    return tuple(dims)


def _flatten_shape(site: Site) -> Shape:
    shape, axis = site.shape(), site.axis(1)
    return product(shape[:axis]), product(shape[axis:])


def _axes(site: Site) -> tuple[int, ...] | None:
    if site.has(1):
        return tuple(int(a) for a in site.dims(1))  # type: ignore[arg-type]
    axes = site.attribute("axes")
    return None if axes is None else tuple(axes)


def _squeeze_shape(site: Site) -> Shape:
    shape, axes = site.shape(), _axes(site)
    drop = (
        {i for i, d in enumerate(shape) if d == 1} if axes is None else set(normalized_axes(axes, len(shape)))
    )
    return tuple(d for i, d in enumerate(shape) if i not in drop)


def _unsqueeze_shape(site: Site) -> Shape:
    axes = _axes(site) or ()
    rest = iter(site.shape())
    rank = site.rank() + len(axes)
    new = set(normalized_axes(axes, rank))
    return tuple(1 if i in new else next(rest) for i in range(rank))


# The references below also run on object arrays of dimensions, which is how shape arithmetic is followed.


def _same(attributes: Mapping[str, Any], x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    return x


def _reshape(attributes: Mapping[str, Any], x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    keep_zero = attributes.get("allowzero", 0)
    dims = [x.shape[i] if d == 0 and not keep_zero else int(d) for i, d in enumerate(shape.tolist())]
    return x.reshape(dims)


def _flatten(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    axis = attributes.get("axis", 1)
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


def _given_axes(attributes: Mapping[str, Any], axes: np.ndarray | None) -> tuple[int, ...] | None:
    found = attributes.get("axes") if axes is None else axes.tolist()
    return None if found is None else tuple(found)


def _squeeze(attributes: Mapping[str, Any], x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    return np.squeeze(x, _given_axes(attributes, axes))


def _unsqueeze(attributes: Mapping[str, Any], x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    return np.expand_dims(x, _given_axes(attributes, axes) or ())


identity = Op("Identity", since=(1, 13, 14, 16), infer=same_as(0), reference=_same, view=True)
reshape = Op(
    "Reshape",
    since=(5, 13, 14),
    infer=lambda site: _shaped(site, _reshape_shape(site)),
    reference=_reshape,
    view=True,
)
flatten = Op(
    "Flatten",
    since=(1, 9, 11, 13),
    infer=lambda site: _shaped(site, _flatten_shape(site)),
    reference=_flatten,
    view=True,
)
squeeze = Op(
    "Squeeze",
    since=(1, 11, 13),
    infer=lambda site: _shaped(site, _squeeze_shape(site)),
    reference=_squeeze,
    view=True,
)
unsqueeze = Op(
    "Unsqueeze",
    since=(1, 11, 13),
    infer=lambda site: _shaped(site, _unsqueeze_shape(site)),
    reference=_unsqueeze,
    view=True,
)
