"""Rules of operators that read a value with an element for each place of a mask (masked_selection.py): along which axis
their result has one, and how reductions and sizes leave out the places where the mask is false.

A rule returns None where it wrote nodes, else the reason why the operator cannot read such a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.authoring.selection_writer import Selected, SelectionWriter
from minbuild.ir import Node

_CURE = "Reduce the selected elements before it, or keep all elements, and choose between them and others with Where"


Rule = Callable[[SelectionWriter, Node], "str | None"]


def rewritten(graph: SelectionWriter, node: Node) -> str | None:
    """Writes the node, or what stands for it; else returns the reason why not."""
    rule = None if node.domain else _RULES.get(node.op_type)
    reason = "no rule" if rule is None else rule(graph, node)
    if reason is None:
        return None
    chosen = next(n for n in node.inputs if n in graph.selected) if node.inputs else ""
    detail = "" if reason == "no rule" else f" ({reason})"
    return (
        f"the size of its input '{chosen}' depends on data, a mask, and it cannot read that{detail}. {_CURE}"
    )


def _kept(graph: SelectionWriter, node: Node, selected: Selected) -> None:
    """The node as it is, with a result selected along an axis."""
    graph.emit(node)
    graph.selected |= {n: selected for n in node.outputs if n}


def _rank(graph: SelectionWriter, name: str) -> int:
    return len(graph.lowering.shape(name))


def _only_first(graph: SelectionWriter, node: Node) -> Selected | None:
    """The selection of input 0, where no other input is one."""
    if any(n in graph.selected for n in node.inputs[1:]):
        return None
    return graph.selected.get(node.inputs[0])


def _axes(graph: SelectionWriter, node: Node, rank: int) -> tuple[int, ...] | None:
    """The axes of a reduction, Squeeze or Unsqueeze, by attribute or input; () for none; None where they are data."""
    given: Any = node.attributes.get("axes")
    if len(node.inputs) > 1 and node.inputs[1]:
        given = graph.lowering.content(node.inputs[1])
        if given is None:
            return None
    return () if given is None else tuple(int(a) % rank for a in np.ravel(given))


def _unary(graph: SelectionWriter, node: Node) -> str | None:
    selected = _only_first(graph, node)
    if selected is None:
        return "it selects the limits too"
    _kept(graph, node, selected if node.op_type in ("Cast", "Identity") else selected.at(selected.axis))
    return None


def _broadcast(graph: SelectionWriter, node: Node) -> str | None:
    rank = max(_rank(graph, n) for n in node.inputs if n)
    found: Selected | None = None
    for name in node.inputs:
        if name in graph.selected:
            one = graph.selected[name]
            moved = one.at(one.axis + rank - _rank(graph, name))
            if found is not None and moved != found:
                return "its inputs are selected by different masks, or along different axes"
            found = moved
    assert found is not None
    for name in node.inputs:
        if name and name not in graph.selected:
            own = found.axis - (rank - _rank(graph, name))
            if own >= 0 and graph.lowering.shape(name)[own] != 1:
                return f"'{name}' has a size of its own there"
    _kept(graph, node, found)
    return None


def _transpose(graph: SelectionWriter, node: Node) -> str | None:
    selected = graph.selected[node.inputs[0]]
    rank = _rank(graph, node.inputs[0])
    perm = tuple(node.attributes.get("perm") or range(rank)[::-1])
    moved = selected.at(perm.index(selected.axis))
    if selected.rows_of and perm == (1, 0):
        moved = replace(moved, rows_of=selected.rows_of, turned=not selected.turned)
    _kept(graph, node, moved)
    return None


def _unsqueeze(graph: SelectionWriter, node: Node) -> str | None:
    selected = _only_first(graph, node)
    rank = _rank(graph, node.inputs[0])
    given = node.attributes.get("axes")
    if len(node.inputs) > 1:
        given = graph.lowering.content(node.inputs[1])
    if selected is None or given is None:
        return "its axes are data"
    count = len(np.ravel(given))
    new = {int(a) % (rank + count) for a in np.ravel(given)}
    kept = [a for a in range(rank + count) if a not in new]
    _kept(graph, node, selected.at(kept[selected.axis]))
    return None


def _squeeze(graph: SelectionWriter, node: Node) -> str | None:
    selected = _only_first(graph, node)
    rank = _rank(graph, node.inputs[0])
    axes = _axes(graph, node, rank)
    if selected is None or axes is None:
        return "its axes are data"
    if not axes:
        axes = tuple(
            a for a, d in enumerate(graph.lowering.shape(node.inputs[0])) if d == 1 and a != selected.axis
        )
    if selected.axis in axes:
        return "it removes the selected axis"
    title = node.outputs[0]
    graph.axes_changed("Squeeze", node.inputs[0], axes, title)
    graph.selected[title] = selected.at(selected.axis - sum(a < selected.axis for a in axes))
    return None


def _gather(graph: SelectionWriter, node: Node) -> str | None:
    data, indices = node.inputs[:2]
    axis = int(node.attributes.get("axis", 0)) % max(_rank(graph, data), 1)
    if data in graph.selected and indices in graph.selected:
        return "both of its inputs are selected"
    if indices in graph.selected:
        selected = graph.selected[indices]
        _kept(graph, node, selected.at(axis + selected.axis))
        return None
    selected = graph.selected[data]
    if selected.axis == axis:
        return "it takes elements by their number among those selected"
    more = _rank(graph, indices) - 1
    _kept(graph, node, selected.at(selected.axis + (more if axis < selected.axis else 0)))
    return None


def _gather_nd(graph: SelectionWriter, node: Node) -> str | None:
    data, indices = node.inputs[:2]
    selected = graph.selected.get(indices)
    if data in graph.selected or selected is None or node.attributes.get("batch_dims", 0):
        return "it takes elements by their number among those selected"
    if selected.axis >= _rank(graph, indices) - 1:
        return "an index has as many numbers as are selected"
    _kept(graph, node, selected.at(selected.axis))
    return None


def _scatter_nd(graph: SelectionWriter, node: Node) -> str | None:
    """`x[mask] = y` by the indices of the mask: a choice for each place."""
    data, indices, updates = node.inputs
    where, new = graph.selected.get(indices), graph.selected.get(updates)
    if where is None or new is None or data in graph.selected or not (where.rows_of and where.turned):
        return "it writes elsewhere than where a mask is true, or what was selected by another one"
    shape, places = graph.lowering.shape(data), graph.lowering.shape(where.rows_of)
    plain = node.attributes.get("reduction", "none") in ("none", b"none")
    if not plain or new.mask != where.mask or new.axis or shape[: len(places)] != places:
        return "it writes elsewhere than where a mask is true, or adds"
    title, rest = node.outputs[0], len(shape) - len(places)
    old = data
    if rest or len(places) > 1:
        sizes = [d for d in shape[len(places) :] if isinstance(d, int)]
        if len(sizes) < rest:
            return "the sizes of what it writes must be known"
        flat = graph.integers(f"{title}/rows_shape", [-1, *sizes])
        old = graph.add("Reshape", data, flat, name=f"{title}/rows")
    mask = where.mask
    if rest:
        mask = graph.axes_changed("Unsqueeze", mask, range(1, rest + 1), f"{title}/mask")
    if old is data:
        graph.add("Where", mask, updates, old, name=title)
        return None
    chosen = graph.add("Where", mask, updates, old, name=f"{title}/chosen")
    graph.add("Reshape", chosen, graph.add("Shape", data, name=f"{title}/shape"), name=title)
    return None


def _along(graph: SelectionWriter, node: Node) -> str | None:
    """Operators along an axis of their own, by the attribute `axis`."""
    selected = _only_first(graph, node)
    axis = int(node.attributes.get("axis", 0 if node.op_type == "Split" else -1)) % _rank(
        graph, node.inputs[0]
    )
    if selected is None or axis == selected.axis:
        return "it works along the axis of the selected elements"
    if node.op_type == "LayerNormalization" and axis < selected.axis:
        return "it normalises over the selected elements"
    if (
        node.op_type in ("Softmax", "LogSoftmax")
        and node.version < 13
        and axis < _rank(graph, node.inputs[0]) - 1
    ):
        return "it works along the axis of the selected elements"
    _kept(graph, node, selected.at(selected.axis))
    return None


def _concat(graph: SelectionWriter, node: Node) -> str | None:
    found = {graph.selected.get(n) for n in node.inputs}
    first = graph.selected[next(n for n in node.inputs if n in graph.selected)]
    axis = int(node.attributes["axis"]) % _rank(graph, node.inputs[0])
    if {f and f.at(f.axis) for f in found} != {first.at(first.axis)} or axis == first.axis:
        return "it joins what different masks select"
    _kept(graph, node, first.at(first.axis))
    return None


def _reshape(graph: SelectionWriter, node: Node) -> str | None:
    """Axes of size 1 come and go."""
    selected = _only_first(graph, node)
    target = graph.lowering.content(node.inputs[1]) if len(node.inputs) > 1 else None
    if selected is None or target is None or target.dtype == object or node.attributes.get("allowzero", 0):
        return "its shape is data"
    shape, wanted = graph.lowering.shape(node.inputs[0]), [int(d) for d in target]
    others = [d for a, d in enumerate(shape) if a != selected.axis]
    if any(d != 1 for d in others) or wanted.count(-1) != 1 or any(d not in (1, -1) for d in wanted):
        return "it may join the axis of the selected elements with others"
    _kept(graph, node, selected.at(wanted.index(-1)))
    return None


def _matmul(graph: SelectionWriter, node: Node) -> str | None:
    selected = _only_first(graph, node)
    ranks = [_rank(graph, n) for n in node.inputs[:2]]
    if selected is None or selected.axis == ranks[0] - 1 or ranks[0] < 2 or (ranks[1] != 2):
        return "it sums over the selected elements, or multiplies by them from the right"
    if node.op_type == "Gemm":
        bias = graph.lowering.shape(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else ()
        if node.attributes.get("transA", 0) or (len(bias) == 2 and bias[0] != 1):
            return "it sums over the selected elements, or adds what has a size of its own"
    _kept(graph, node, selected.at(selected.axis))
    return None


# ----------------------------------------------------------------------------------------- Sizes and reductions


def _shape(graph: SelectionWriter, node: Node) -> str | None:
    """The sizes, with the count in place of that of the selected axis; computed on the device."""
    x, title = node.inputs[0], node.outputs[0]
    selected, rank = graph.selected[x], _rank(graph, node.inputs[0])
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
    return None


def _size(graph: SelectionWriter, node: Node) -> str | None:
    x, title = node.inputs[0], node.outputs[0]
    selected = graph.selected[x]
    whole = graph.add("Size", x, name=f"{title}/elements")
    places = graph.add("Size", selected.mask, name=f"{title}/all")
    one = graph.add("Div", whole, places, name=f"{title}/rest")
    scalar = graph.axes_changed("Squeeze", selected.count, [0], f"{title}/count")
    graph.add("Mul", one, scalar, name=title)
    return None


_NEUTRAL: Mapping[str, Callable[[Any], float]] = {
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


def _reduce(graph: SelectionWriter, node: Node) -> str | None:
    x, title = node.inputs[0], node.outputs[0]
    selected, rank = _only_first(graph, node), _rank(graph, x)
    axes = _axes(graph, node, rank)
    if selected is None or axes is None:
        return "its axes are data"
    if not axes:
        if node.attributes.get("noop_with_empty_axes", 0):
            return "it reduces nothing"
        axes = tuple(range(rank))
    keep = int(node.attributes.get("keepdims", 1))
    if selected.axis not in axes:
        gone = 0 if keep else sum(a < selected.axis for a in axes)
        _kept(graph, node, selected.at(selected.axis - gone))
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
    neutral = graph.like(f"{title}/neutral", _NEUTRAL[node.op_type](dtype), x)
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


_UNARY: Sequence[str] = (
    *(
        "Abs",
        "Acos",
        "Acosh",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "Cast",
        "Ceil",
        "Celu",
        "Clip",
        "Cos",
        "Cosh",
    ),
    *("Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN"),
    *("LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign"),
    *("Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu"),
)
_BROADCAST: Sequence[str] = (
    *(
        "Add",
        "And",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Max",
        "Min",
        "Mod",
        "Mul",
    ),
    *("Or", "Pow", "PRelu", "Sub", "Sum", "Where", "Xor"),
)
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(_NEUTRAL, _reduce),
    **dict.fromkeys(("LayerNormalization", "LogSoftmax", "Softmax", "Split"), _along),
    **dict.fromkeys(("Gemm", "MatMul"), _matmul),
    "Concat": _concat,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Reshape": _reshape,
    "ScatterND": _scatter_nd,
    "Shape": _shape,
    "Size": _size,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
