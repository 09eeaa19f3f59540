"""Rules of operators that read a value with an element for each place of a mask (masked_selection.py): along which axis
their result has one, and how reductions and sizes leave out the places where the mask is false.

A rule returns None where it wrote nodes, else the reason why the operator cannot read such a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from minbuild.authoring.selection_assignments import expand, scatter_nd
from minbuild.authoring.selection_reductions import NEUTRAL, reduce, shape, size
from minbuild.authoring.selection_writer import Selected, SelectionWriter
from minbuild.ir import Node
from minbuild.ir.dims import product

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


def _unary(graph: SelectionWriter, node: Node) -> str | None:
    selected = graph.only_first(node)
    if selected is None:
        return "it selects the limits too"
    graph.kept(node, selected if node.op_type in ("Cast", "Identity") else selected.at(selected.axis))
    return None


def _cast_like(graph: SelectionWriter, node: Node) -> str | None:
    """Of the second input it reads the type alone."""
    graph.emit(node)
    if node.inputs[0] in graph.selected:
        graph.selected[node.outputs[0]] = graph.selected[node.inputs[0]]
    return None


def _broadcast(graph: SelectionWriter, node: Node) -> str | None:
    rank = max(graph.rank(n) for n in node.inputs if n)
    found: Selected | None = None
    for name in node.inputs:
        if name in graph.selected:
            one = graph.selected[name]
            moved = one.at(one.axis + rank - graph.rank(name))
            if found is not None and moved != found:
                return "its inputs are selected by different masks, or along different axes"
            found = moved
    assert found is not None
    for name in node.inputs:
        if name and name not in graph.selected:
            own = found.axis - (rank - graph.rank(name))
            if own >= 0 and graph.lowering.shape(name)[own] != 1:
                return f"'{name}' has a size of its own there"
    graph.kept(node, found)
    return None


def _transpose(graph: SelectionWriter, node: Node) -> str | None:
    selected = graph.selected[node.inputs[0]]
    rank = graph.rank(node.inputs[0])
    perm = tuple(node.attributes.get("perm") or range(rank)[::-1])
    moved = selected.at(perm.index(selected.axis))
    if selected.rows_of and perm == (1, 0):
        moved = replace(moved, rows_of=selected.rows_of, turned=not selected.turned)
    graph.kept(node, moved)
    return None


def _unsqueeze(graph: SelectionWriter, node: Node) -> str | None:
    selected = graph.only_first(node)
    rank = graph.rank(node.inputs[0])
    given = node.attributes.get("axes")
    if len(node.inputs) > 1:
        given = graph.lowering.content(node.inputs[1])
    if selected is None or given is None:
        return "its axes are data"
    count = len(np.ravel(given))
    new = {int(a) % (rank + count) for a in np.ravel(given)}
    kept = [a for a in range(rank + count) if a not in new]
    graph.kept(node, selected.at(kept[selected.axis]))
    return None


def _squeeze(graph: SelectionWriter, node: Node) -> str | None:
    selected = graph.only_first(node)
    rank = graph.rank(node.inputs[0])
    axes = graph.axes(node, rank)
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
    axis = int(node.attributes.get("axis", 0)) % max(graph.rank(data), 1)
    if data in graph.selected and indices in graph.selected:
        return "both of its inputs are selected"
    if indices in graph.selected:
        selected = graph.selected[indices]
        graph.kept(node, selected.at(axis + selected.axis))
        return None
    selected = graph.selected[data]
    if selected.axis == axis:
        if not selected.in_order:
            return "it takes elements by their number among those selected"
        graph.emit(_from_the_end(graph, node, selected))
        return None
    more = graph.rank(indices) - 1
    graph.kept(node, selected.at(selected.axis + (more if axis < selected.axis else 0)))
    return None


def _from_the_end(graph: SelectionWriter, node: Node, selected: Selected) -> Node:
    """`node`, a Gather by numbers, with negative constants counted from the last selected element."""
    numbers = graph.lowering.content(node.inputs[1])
    if numbers is None or numbers.dtype == object or not np.any(numbers < 0):
        return node
    title = f"{node.outputs[0]}/from_the_end"
    shape = graph.integers(f"{title}/shape", list(numbers.shape))
    negative = graph.integers(f"{title}/negative", (numbers < 0).ravel())
    flat = graph.integers(f"{title}/numbers", numbers.ravel())
    counted = graph.add("Mul", negative, selected.count, name=f"{title}/counted")
    places = graph.add("Add", flat, counted, name=f"{title}/flat")
    index = graph.add("Reshape", places, shape, name=f"{title}/places")
    return replace(node, inputs=(node.inputs[0], index))


def _gather_nd(graph: SelectionWriter, node: Node) -> str | None:
    data, indices = node.inputs[:2]
    selected = graph.selected.get(indices)
    if data in graph.selected or selected is None or node.attributes.get("batch_dims", 0):
        return "it takes elements by their number among those selected"
    if selected.axis >= graph.rank(indices) - 1:
        return "an index has as many numbers as are selected"
    graph.kept(node, selected.at(selected.axis))
    return None


def _along(graph: SelectionWriter, node: Node) -> str | None:
    """Operators along an axis of their own, by the attribute `axis`."""
    selected = graph.only_first(node)
    default = 0 if node.op_type == "Split" else -1
    axis = int(node.attributes.get("axis", default)) % graph.rank(node.inputs[0])
    if selected is None or axis == selected.axis:
        return "it works along the axis of the selected elements"
    if node.op_type == "LayerNormalization" and axis < selected.axis:
        return "it normalises over the selected elements"
    if (
        node.op_type in ("Softmax", "LogSoftmax")
        and node.version < 13
        and axis < graph.rank(node.inputs[0]) - 1
    ):
        return "it works along the axis of the selected elements"
    graph.kept(node, selected.at(selected.axis))
    return None


def _slice(graph: SelectionWriter, node: Node) -> str | None:
    selected, rank = graph.only_first(node), graph.rank(node.inputs[0])
    axes = node.attributes.get("axes")
    if len(node.inputs) > 3 and node.inputs[3]:
        axes = graph.lowering.content(node.inputs[3])
    if selected is None or axes is None or selected.axis in {int(a) % rank for a in np.ravel(axes)}:
        return "it takes elements by their number among those selected"
    graph.kept(node, selected.at(selected.axis))
    return None


def _concat(graph: SelectionWriter, node: Node) -> str | None:
    found = {graph.selected.get(n) for n in node.inputs}
    first = graph.selected[next(n for n in node.inputs if n in graph.selected)]
    axis = int(node.attributes["axis"]) % graph.rank(node.inputs[0])
    if {f and f.at(f.axis) for f in found} != {first.at(first.axis)} or axis == first.axis:
        return "it joins what different masks select"
    graph.kept(node, first.at(first.axis))
    return None


def _reshape(graph: SelectionWriter, node: Node) -> str | None:
    """Axes of size 1 come and go, and rows that are selected become elements that are."""
    selected = graph.only_first(node)
    target = graph.lowering.content(node.inputs[1]) if len(node.inputs) > 1 else None
    if selected is None or target is None or target.dtype == object or node.attributes.get("allowzero", 0):
        return "its shape is data"
    shape, wanted = graph.lowering.shape(node.inputs[0]), [int(d) for d in target]
    others = [d for a, d in enumerate(shape) if a != selected.axis]
    sizes = [d for d in others if isinstance(d, int)]
    if wanted == [-1] and not selected.axis and len(sizes) == len(others) and prod(sizes) > 1:
        title, times = node.outputs[0], prod(sizes)
        by = graph.integers(f"{title}/times", [times])
        count = graph.add("Mul", selected.count, by, name=f"{title}/count")
        mask = graph.repeated(selected.mask, times)
        places = product((selected.places, *sizes))
        graph.kept(node, Selected(mask, count, places, 0, in_order=selected.in_order))
        return None
    if any(d != 1 for d in others) or wanted.count(-1) != 1 or any(d not in (1, -1) for d in wanted):
        return "it may join the axis of the selected elements with others"
    graph.kept(node, selected.at(wanted.index(-1)))
    return None


def _matmul(graph: SelectionWriter, node: Node) -> str | None:
    selected = graph.only_first(node)
    ranks = [graph.rank(n) for n in node.inputs[:2]]
    if selected is None or selected.axis == ranks[0] - 1 or ranks[0] < 2 or (ranks[1] != 2):
        return "it sums over the selected elements, or multiplies by them from the right"
    if node.op_type == "Gemm":
        bias = graph.lowering.shape(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else ()
        if node.attributes.get("transA", 0) or (len(bias) == 2 and bias[0] != 1):
            return "it sums over the selected elements, or adds what has a size of its own"
    graph.kept(node, selected.at(selected.axis))
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
    **dict.fromkeys(NEUTRAL, reduce),
    **dict.fromkeys(("LayerNormalization", "LogSoftmax", "Softmax", "Split"), _along),
    **dict.fromkeys(("Gemm", "MatMul"), _matmul),
    "CastLike": _cast_like,
    "Concat": _concat,
    "Expand": expand,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Reshape": _reshape,
    "ScatterND": scatter_nd,
    "Shape": shape,
    "Size": size,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
