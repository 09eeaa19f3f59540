"""FakeQuant with a scale for each index of an axis, or for blocks of them, as simpler operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results, Value

_WIDE = 1 << 20  # beyond every quantised type that is cut off elsewhere


def per_axis(b: GraphBuilder) -> Results:
    """With one scale for each index of `axis`, or for each `block_size` of them: x / scale rounded with the scale 1,
    times scale. Zero points that differ move what is cut off instead of what is rounded, as ties go to even."""
    if "axis" not in b.ctx.attributes:
        return None
    x, scale = b.x[0], _beside(b, 1)
    split = _split(b)
    ratio = (x.reshape(split) if split else x) / scale
    low, high = quantised_range(b.ctx.attributes)
    point = b.ctx.content(2)
    one = b.constant(1)
    if point is not None and np.unique(point).size == 1:
        bounds = {"quant_min": low, "quant_max": high}
        zero = b.constant(point.ravel()[0])
        whole, inside = b.many(2, "FakeQuant", ratio, one, zero, domain="com.microsoft", **bounds)
    else:
        bounds = {"quant_min": -_WIDE, "quant_max": _WIDE}
        rounded = b.microsoft("FakeQuant", ratio, one, b.constant(0), **bounds)
        zero = _beside(b, 2)
        lowest, highest = low - zero, high - zero
        whole = b.where(rounded < lowest, lowest, b.where(rounded > highest, highest, rounded))
        inside = (rounded >= lowest) & (rounded <= highest)
    results = whole * scale, inside
    return tuple(r.reshape_like(x) for r in results[: len(b.y)]) if split else results[: len(b.y)]


def _split(b: GraphBuilder) -> list[int]:
    """The shape of x with its axis as blocks and elements of them; empty where there are no blocks."""
    block, axis = int(b.ctx.attribute("block_size", 0)), b.ctx.axis(1)
    if not block:
        return []
    sizes = [d for d in b.ctx.shape() if isinstance(d, int)]
    if len(sizes) < b.ctx.rank() or sizes[axis] % block:
        raise UnsupportedUse(f"blocks of {block} need fixed sizes, and one of axis {axis} that they divide")
    return [*sizes[:axis], sizes[axis] // block, block, *sizes[axis + 1 :]]


def _beside(b: GraphBuilder, i: int) -> Value:
    """Input `i`, a scale or zero point, so that it broadcasts to x."""
    axis, rank = b.ctx.axis(1), b.ctx.rank()
    if b.ctx.attribute("block_size", 0):
        return b.x[i].unsqueeze([axis + 1])
    return b.x[i].unsqueeze([a for a in range(rank) if a != axis])


def quantised_range(attributes: Mapping[str, Any]) -> tuple[int, int]:
    return int(attributes.get("quant_min", 0)), int(attributes.get("quant_max", 255))


OPS: tuple[()] = ()
