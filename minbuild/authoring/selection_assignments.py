"""Assignments to what a mask selects (masked_selection.py), and what brings values to its shape for them: `x[mask] = y`
as PyTorch's exporters write it, by the indices of rows or of single elements.

As all rules of selections they return None where they wrote nodes, else the reason why the operator cannot read the
value.
"""

from __future__ import annotations

from dataclasses import replace

from minbuild.authoring.selection_writer import Selected, SelectionWriter
from minbuild.ir import ElementType, Node
from minbuild.ir.dims import product


def scatter_nd(graph: SelectionWriter, node: Node) -> str | None:
    """`x[mask] = y` by the indices of the mask: a choice for each place. What is added goes anywhere."""
    data, indices, updates = node.inputs
    where, new = graph.selected.get(indices), graph.selected.get(updates)
    if node.attributes.get("reduction") in ("add", b"add"):
        return _added(graph, node, where, new)
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


def _added(graph: SelectionWriter, node: Node, where: Selected | None, new: Selected | None) -> str | None:
    """Zeros are added at places where the mask is false."""
    data, indices, updates = node.inputs
    if (
        where is None
        or new is None
        or data in graph.selected
        or where.mask != new.mask
        or where.axis
        or new.axis
    ):
        return "it adds elsewhere than it selects"
    title, rank = node.outputs[0], graph.rank(updates)
    mask = new.mask
    if rank > 1:
        mask = graph.axes_changed("Unsqueeze", mask, range(1, rank), f"{title}/mask")
    zero = graph.like(f"{title}/zero", 0, updates)
    masked = graph.add("Where", mask, updates, zero, name=f"{title}/masked")
    graph.emit(replace(node, inputs=(data, indices, masked)))
    return None


def expand(graph: SelectionWriter, node: Node) -> str | None:
    """To the shape of what the same mask selects along the same axis, as newer exporters write it: the shape of another
    value, where both have equal sizes, or the sum of the mask before sizes that are known."""
    x, to = node.inputs
    selected, other = graph.only_first(node), graph.shapes.get(to, "")
    sizes = _sizes_behind_count(graph, to, selected) if selected is not None and not other else None
    if selected is not None and sizes is not None and len(sizes) == graph.rank(x) - 1:
        shape = graph.integers(f"{node.outputs[0]}/sizes", [1, *sizes])
        graph.kept(replace(node, inputs=(x, shape)), selected)
        return None
    if selected is None or not other or graph.selected[other].at(0) != selected.at(0):
        return "its shape is not that of a value which the same mask selects"
    if selected.axis != graph.selected[other].axis or graph.lowering.shape(x) != graph.lowering.shape(other):
        return "it has other sizes there"
    graph.kept(replace(node, op_type="Identity", version=graph.opset, inputs=(x,)), selected)
    return None


def expanded_to_count(graph: SelectionWriter, node: Node) -> bool:
    """Writes an Expand of what is not selected to as many as a mask selects: with one for each of its places. False
    where that is not its shape."""
    x, to = node.inputs
    maker = graph.makers.get(to)
    count = maker.inputs[0] if maker is not None and maker.op_type == "Concat" else to
    summed = "" if graph.lowering.content(to) is not None else _summed_mask(graph, count)
    if not summed:
        return False
    mask, places = graph.flat_mask(summed), product(graph.lowering.shape(summed))
    selected = Selected(mask, count, places, 0)
    sizes = _sizes_behind_count(graph, to, selected)
    if sizes is None or len(sizes) < graph.rank(x) - 1:
        return False
    title = node.outputs[0]
    every = graph.add("Shape", mask, name=f"{title}/places")
    rest = graph.integers(f"{title}/sizes", sizes)
    shape = graph.add("Concat", every, rest, name=f"{title}/shape", axis=0)
    graph.kept(replace(node, inputs=(x, shape)), selected)
    return True


def _sizes_behind_count(graph: SelectionWriter, shape: str, selected: Selected) -> list[int] | None:
    """The sizes that `shape` has behind the number of `selected` elements; None where it is no such shape."""
    maker = graph.makers.get(shape)
    parts = maker.inputs if maker is not None and maker.op_type == "Concat" else (shape,)
    rest = [graph.lowering.content(n) for n in parts[1:]]
    if selected.axis or not _is_count(graph, parts[0], selected):
        return None
    if any(r is None or r.dtype == object for r in rest):
        return None
    return [int(d) for r in rest if r is not None for d in r]


def _is_count(graph: SelectionWriter, name: str, selected: Selected) -> bool:
    """True where `name` [1] is the number of `selected` elements: the sum of their mask, or the shape of a vector that
    it selects."""
    if name in graph.shapes:
        vector = graph.shapes[name]
        return graph.rank(vector) == 1 and graph.selected[vector].mask == selected.mask
    summed = _summed_mask(graph, name)
    return bool(summed) and graph.flat_mask(summed) == selected.mask


def _summed_mask(graph: SelectionWriter, name: str) -> str:
    """The mask whose sum `name` [1] is, or "" where it is no such sum."""
    for op_type in ("ReduceSum", "Cast", "Reshape"):
        maker = graph.makers.get(name)
        if maker is None or maker.op_type != op_type:
            return ""
        name = maker.inputs[0]
        if op_type == "ReduceSum" and (len(maker.inputs) > 1 or graph.rank(name) != 1):
            return ""
    return name if graph.lowering.element(name) is ElementType.BOOL else ""
