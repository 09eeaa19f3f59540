"""Resize by a whole factor along axes whose sizes are free: no table can be made, but each input element makes the same
`factor` outputs of itself and its neighbours, whatever the size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Value
from minbuild.ops.image.interpolation import Stretch

_PROBE = 8  # elements of an axis on which a nearest mode is tried
_END = 2**31 - 1
DECOMPOSES_TO = ("Add", "Concat", "Gather", "Mul", "Reshape", "Shape", "Slice", "Unsqueeze")


def resize_by_whole_factor(
    b: GraphBuilder, x: Value, axis: int, factor: float, rank: int, attributes: Mapping[str, Any]
) -> Value:
    """`x` with `factor` times as many elements along an axis of free size. `b` is the graph, `axis` one of the `rank`
    of `x`, `attributes` are those of Resize. Raises UnsupportedUse for factors and modes that depend on the size."""
    count = int(factor)
    if count != factor or count < 1:
        raise UnsupportedUse(
            f"resizes axis {axis} of free size by {factor:g}; a free size can only be resized by a whole factor. Give "
            "the dimension a size"
        )
    if attributes.get("mode", "nearest") == "nearest":
        _check_repeats(axis, count, attributes)
        phases: Sequence[Value] = [x] * count
    else:
        phases = _linear_phases(b, x, axis, count, attributes)
    joined = b.add("Concat", *(phase.unsqueeze((axis + 1,)) for phase in phases), axis=axis + 1)
    shape = x.shape()
    pieces = [_part(b, shape, axis, axis + 1) * b.integers([count])]
    if axis:
        pieces.insert(0, _part(b, shape, 0, axis))
    if axis + 1 < rank:
        pieces.append(_part(b, shape, axis + 1, rank))
    return b.add("Reshape", joined, b.add("Concat", *pieces, axis=0))


def _part(b: GraphBuilder, shape: Value, start: int, end: int) -> Value:
    return b.add("Slice", shape, b.integers([start]), b.integers([end]))


def _check_repeats(axis: int, count: int, attributes: Mapping[str, Any]) -> None:
    """Raises UnsupportedUse unless the nearest element is the one that outputs stand in."""
    table = Stretch(axis, _PROBE, _PROBE * count, float(count)).table(attributes)
    if not np.array_equal(table.indices[:, 0], np.repeat(np.arange(_PROBE), count)):
        raise UnsupportedUse(
            f"this nearest_mode and coordinate_transformation_mode shift axis {axis}, whose size is free. Give the "
            "dimension a size"
        )


def _linear_phases(
    b: GraphBuilder, x: Value, axis: int, count: int, attributes: Mapping[str, Any]
) -> list[Value]:
    """Output `i * count + k` of each element i, for each k."""
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    if attributes.get("mode") != "linear" or mode not in ("half_pixel", "pytorch_half_pixel", "asymmetric"):
        raise UnsupportedUse(
            f"mode {attributes.get('mode')} with coordinate_transformation_mode {mode} needs axis {axis}, whose size "
            "is free, to be known. Give the dimension a size"
        )
    before = b.add("Concat", _slice(b, x, axis, 0, 1), _slice(b, x, axis, 0, -1), axis=axis)
    behind = b.add("Concat", _slice(b, x, axis, 1, _END), _slice(b, x, axis, -1, _END), axis=axis)
    phases = []
    for k in range(count):
        place = k / count if mode == "asymmetric" else (k + 0.5) / count - 0.5
        share = abs(place)
        if share == 0:
            phases.append(x)
            continue
        neighbour = before if place < 0 else behind
        phases.append(x * (1 - share) + neighbour * share)
    return phases


def _slice(b: GraphBuilder, x: Value, axis: int, start: int, end: int) -> Value:
    return b.add("Slice", x, b.integers([start]), b.integers([end]), b.integers([axis]))


OPS: tuple[()] = ()
