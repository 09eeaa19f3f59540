"""Sizes and reductions of a value with an element for each place of a mask (masked_selection.py): they leave out the
places where the mask is false.

As all rules of selections they return None where they wrote nodes, else the reason why the operator cannot read the
value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minbuild.authoring.selection_writer import SelectionWriter
from minbuild.ir import Node


def shape(graph: SelectionWriter, node: Node) -> str | None:
    """The sizes, with the count in place of that of the selected axis; computed on the device."""
    x, title = node.inputs[0], node.outputs[0]
    selected, rank = graph.selected[x], graph.rank(node.inputs[0])
    if node.attributes.get("start", 0) or node.attributes.get("end") is not None:
        return "it returns a part of the shape"
    whole = graph.add("Shape", x, name=f"{title}/places")
    parts = []
    for axis in range(rank):
        if axis == selected.axis:
            parts.append(selected.count)
        else:
            at = graph.integers(f"{title}/axis{axis}", [axis])
            parts.append(graph.add("Gather", whole, at, name=f"{title}/size{axis}", axis=0))
    graph.add("Concat", *parts, name=title, axis=0)
    graph.shapes[title] = x
    return None


def size(graph: SelectionWriter, node: Node) -> str | None:
    """The number of elements at places where the mask is true."""
    x, title = node.inputs[0], node.outputs[0]
    selected = graph.selected[x]
    whole = graph.add("Size", x, name=f"{title}/elements")
    places = graph.add("Size", selected.mask, name=f"{title}/all")
    one = graph.add("Div", whole, places, name=f"{title}/rest")
    scalar = graph.axes_changed("Squeeze", selected.count, [0], f"{title}/count")
    graph.add("Mul", one, scalar, name=title)
    return None


NEUTRAL: Mapping[str, Callable[[Any], float]] = {
    "ReduceL1": lambda _: 0,
    "ReduceL2": lambda _: 0,
    "ReduceMax": lambda d: -np.inf if d.kind == "f" else np.iinfo(d).min,
    "ReduceMean": lambda _: 0,
    "ReduceMin": lambda d: np.inf if d.kind == "f" else np.iinfo(d).max,
    "ReduceProd": lambda _: 1,
    "ReduceSum": lambda _: 0,
    "ReduceSumSquare": lambda _: 0,
}
_SINCE = {"ReduceSum": 13}  # axes as input; 18 for others


def reduce(graph: SelectionWriter, node: Node) -> str | None:
    """A reduction: with the neutral element at places where the mask is false; a mean divides by the count."""
    x, title = node.inputs[0], node.outputs[0]
    selected, rank = graph.only_first(node), graph.rank(x)
    axes = graph.axes(node, rank)
    if selected is None or axes is None:
        return "its axes are data"
    if not axes:
        if node.attributes.get("noop_with_empty_axes", 0):
            return "it reduces nothing"
        axes = tuple(range(rank))
    keep = int(node.attributes.get("keepdims", 1))
    if selected.axis not in axes:
        gone = 0 if keep else sum(a < selected.axis for a in axes)
        graph.kept(node, selected.at(selected.axis - gone))
        return None
    dtype = graph.lowering.element(x).dtype
    others = [a for a in axes if a != selected.axis]
    mean = node.op_type == "ReduceMean"
    if mean and dtype.kind != "f":
        return "it is a mean of integers"
    mask = selected.mask
    if rank > 1:
        around = [a for a in range(rank) if a != selected.axis]
        mask = graph.axes_changed("Unsqueeze", mask, around, f"{title}/mask")
    neutral = graph.like(f"{title}/neutral", NEUTRAL[node.op_type](dtype), x)
    masked = graph.add("Where", mask, x, neutral, name=f"{title}/masked")
    kind = "ReduceSum" if mean else node.op_type
    since = _SINCE.get(kind, 18)
    if not mean:
        graph.over_axes(kind, masked, axes, name=title, keepdims=keep, since=since)
        return None
    total = graph.over_axes(kind, masked, axes, name=f"{title}/total", keepdims=keep, since=since)
    count = graph.add("Cast", selected.count, name=f"{title}/count", to=int(graph.lowering.element(x)))
    count = graph.axes_changed("Squeeze", count, [0], f"{title}/number")
    if others:
        others_of = graph.integers(f"{title}/others", others)
        sizes = graph.add(
            "Gather", graph.add("Shape", x, name=f"{title}/shape"), others_of, name=f"{title}/sizes"
        )
        rest = graph.over_axes("ReduceProd", sizes, [0], name=f"{title}/rest", keepdims=0, since=18)
        rest = graph.add("Cast", rest, name=f"{title}/rest_number", to=int(graph.lowering.element(x)))
        count = graph.add("Mul", count, rest, name=f"{title}/elements")
    graph.add("Div", total, count, name=title)
    return None
