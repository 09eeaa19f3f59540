"""Sums, means and maxima of bags of embeddings, which torch exports as a Loop over the bags with a sequence of rows:
as operators on all bags at once.

Bag `b` has the rows from `offsets[b]` to `offsets[b + 1]`. Where all bags have one size, the rows are reshaped; else a
matrix of truth values says which row is in which bag. Rows of a padding index are in none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from minbuild.frontend.onnx.bag_expressions import NUMBER, Expressions, Tree
from minbuild.ir import ElementType, Graph, Node
from minbuild.ops.core.definition import OpContext
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Value

_LEAST_OPSET = 13  # of sums with axes as input
_NEXT = ("Add", NUMBER, 1)
_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax")


@dataclass(frozen=True)
class _Bags:
    """The rows [N, width] of all bags, their `reduction`, and `offsets` [bags + 1] into the rows. With `indices`, rows
    of the index `padding` are in no bag, and indices below 0 count from `count`, the number of embeddings."""

    rows: str
    offsets: str
    reduction: str
    width: Tree  # a number, or its name until that is known
    indices: str = ""
    padding: int = 0
    count: int = 0


def with_plain_bags(graph: Graph) -> Graph:
    """The graph with plain operators in place of each loop over bags whose rows a ConcatFromSequence joins."""
    joins = {n.inputs[0]: n for n in graph.nodes if n.op_type == "ConcatFromSequence" and not n.domain}
    if not joins:
        return graph
    written: dict[int, list[Node]] = {}
    removed: set[int] = set()
    for node in graph.nodes:
        join = next((joins[n] for n in node.outputs if n in joins), None)
        if node.op_type != "Loop" or node.domain or join is None or node.version < _LEAST_OPSET:
            continue
        try:
            bags = _bags_of(node, join, graph)
        except (IndexError, TypeError):  # a number stands where bags have an operator
            bags = None
        if bags is not None:
            written[id(join)] = _nodes(bags, join, graph)
            removed |= {
                id(node),
                *(id(n) for n in graph.nodes if n.outputs[0] in node.inputs and _is_empty(n)),
            }
    nodes = [n for each in graph.nodes if id(each) not in removed for n in written.get(id(each), [each])]
    return replace(graph, nodes=tuple(nodes)) if written else graph


# ------------------------------------------------------------------------------------------------- recognition


def _is_empty(node: Node) -> bool:
    return node.op_type == "SequenceEmpty" and not node.domain


def _bags_of(node: Node, join: Node, graph: Graph) -> _Bags | None:
    """The bags of a loop whose rows `join` puts together; None where it does anything else."""
    body = node.attributes.get("body")
    empty = {n.outputs[0] for n in graph.nodes if _is_empty(n)}
    if (
        not isinstance(body, Graph)
        or node.inputs[0]
        or len(node.inputs) != 4
        or join.attributes.get("new_axis", 0)
    ):
        return None
    states = list(body.inputs)[2:]
    outer = Expressions(graph, {})
    rows = next((i for i, n in enumerate(node.inputs[2:]) if n in empty), None)
    if rows is None or node.outputs[rows] != join.inputs[0] or int(join.attributes["axis"]) != 0:
        return None
    if outer.of(node.inputs[3 - rows]) != 0:
        return None
    inside = Expressions(body, {states[1 - rows]: NUMBER, states[rows]: ("rows",)}, outer, expanded=False)
    going, *after = (inside.of(n) for n in body.outputs)
    if len(after) != 2 or after[1 - rows] != _NEXT or going[:2] != ("Less", _NEXT):
        return None
    if not _starts(node.inputs[1], going[2], outer):
        return None
    if after[rows][:2] != ("SequenceInsert", ("rows",)) or len(after[rows]) != 3:
        return None
    bags = _bags_in(after[rows][2], going[2])
    width = 0 if bags is None else outer.of(str(bags.width)) if isinstance(bags.width, str) else bags.width
    return replace(bags, width=width) if bags is not None and isinstance(width, int) else None


def _starts(condition: str, count: Tree, outer: Expressions) -> bool:
    """True if a first round runs wherever there is one of `count` bags."""
    node = outer.maker.get(condition)
    if node is None or node.op_type != "Less":
        return outer.of(condition) is True
    return outer.of(node.inputs[0]) == 0 and count in (node.inputs[1], outer.of(node.inputs[1]))


def _bags_in(row: Tree, count: Tree) -> _Bags | None:
    """The bags by the value of one `row`: zeros, or the reduction of some rows."""
    if row[0] != "If" or len(row) != 4:
        return None
    _, nothing, zeros, taken = row
    last = count - 1 if isinstance(count, int) else ("Sub", count, 1)
    taken = _not_last(taken, last)
    if zeros[:1] != ("zeros",) or len(zeros) != 3 or zeros[1] != 1:
        return None
    if len(taken) != 3 or taken[0] not in _REDUCTIONS or taken[2] != 0:
        return None
    some = _not_last(taken[1], last)
    if some[0] == "Gather" and len(some) == 3 and nothing == ("Equal", ("Size", some[2]), 0):
        return _without_padding(some, taken[0], zeros[2])
    if some[0] != "Slice" or len(some) != 4 or some[2][0] != "Slice":
        return None
    offsets = some[2][1]
    start, end = ("Slice", offsets, NUMBER, _NEXT), ("Slice", offsets, _NEXT, ("Add", NUMBER, 2))
    if some[2:] != (start, end) or nothing != ("Equal", start, end) or not _are_names(some[1], offsets):
        return None
    return _Bags(some[1], offsets, taken[0], zeros[2])


def _are_names(*trees: Tree) -> bool:
    return all(isinstance(t, str) and t for t in trees)


def _not_last(tree: Tree, last: Tree) -> Tree:
    """A value in the rounds before the last one, whose bag reaches to the end of the rows."""
    return tree[3] if tree[0] == "If" and tree[1] == ("Equal", NUMBER, last) else tree


def _without_padding(some: Tree, reduction: str, width: int) -> _Bags | None:
    """Bags of the rows at the places that an inner loop collects: those whose index is not the padding's."""
    _, rows, places = some
    if places[0] != "Loop" or len(places) != 6:
        return None
    condition, start, none, going, after = places[1:]
    offsets = start[1] if start[0] == "Gather" else ""
    end, place, found = ("Gather", offsets, _NEXT), ("state", 0), ("state", 1)
    further = ("Add", place, 1)
    bounds = condition == ("Less", start, end) and going == ("Less", further, end)
    if start != ("Gather", offsets, NUMBER) or not bounds or none != () or after[0] != further:
        return None
    chosen = after[1]
    if chosen[0] != "If" or chosen[2:] != (("Concat", found, place), found) or chosen[1][0] != "Not":
        return None
    equal = chosen[1][1]
    if equal[0] != "Equal" or not isinstance(equal[2], int) or equal[1][0] != "If" or len(equal[1]) != 4:
        return None
    index = equal[1][3]
    negative, added = ("Less", index, 0), equal[1][2]
    if index[0] != "Gather" or index[2] != place or equal[1][1] != negative or added[:2] != ("Add", index):
        return None
    if not _are_names(rows, offsets, index[1]) or not isinstance(added[2], int):
        return None
    return _Bags(rows, offsets, reduction, width, indices=index[1], padding=equal[2], count=added[2])


# ------------------------------------------------------------------------------------------------- the operators


def _nodes(bags: _Bags, join: Node, graph: Graph) -> list[Node]:
    """The operators that make the output of `join`."""
    context = OpContext({}, (), (), join.version)
    b = GraphBuilder(context, (), join.outputs, join.outputs[0], join.version)
    rows, size = Value(b, bags.rows, ElementType.FLOAT), _size(bags, graph)
    kept = _kept(b, bags) if bags.indices else None
    if size is None:
        result = _by_members(b, bags, rows, kept)
    else:
        shaped = rows.reshape((-1, size, bags.width))
        inside = None if kept is None else kept.reshape((-1, size, 1))
        result = _reduced(b, bags.reduction, shaped, inside)
    b.add("Identity", result)
    return [*b.nodes[:-1], replace(b.nodes[-1], name=join.name, outputs=join.outputs)]


def _kept(b: GraphBuilder, bags: _Bags) -> Value:
    """For each row, [N], a truth value: false for those of the padding's index."""
    index = Value(b, bags.indices, ElementType.INT64).cast(ElementType.INT64)
    return ~(b.where(index < 0, index + bags.count, index).equal(bags.padding))


def _reduced(b: GraphBuilder, reduction: str, rows: Value, kept: Value | None) -> Value:
    """`rows` [bags, size, width] reduced over axis 1, as far as they are `kept`, [bags, size, 1] or all."""
    if kept is None:
        return b.reduce(reduction, rows, (1,), False)
    count = kept.cast(ElementType.FLOAT).sum((1,), False)
    if reduction != "ReduceMax":
        total = b.where(kept, rows, 0).sum((1,), False)
        return total if reduction == "ReduceSum" else total / b.where(count > 0, count, 1)
    least = float(np.finfo(np.float32).min)
    return b.where(count > 0, b.where(kept, rows, least).max((1,), False), 0)


def _by_members(b: GraphBuilder, bags: _Bags, rows: Value, kept: Value | None) -> Value:
    """The reduction by a matrix [bags, N] that says which row is in which bag."""
    offsets = Value(b, bags.offsets, ElementType.INT64).cast(ElementType.INT64)
    count = b.add("Gather", rows.shape(), b.constant(0, ElementType.INT64), axis=0)
    zero, one = (b.constant(n, ElementType.INT64) for n in (0, 1))
    places = b.add("Range", zero, count, one).unsqueeze((0,))

    def ends(first: int, last: int) -> Value:
        part = b.add("Slice", offsets, *(b.integers((n,)) for n in (first, last, 0)))
        return part.unsqueeze((1,))

    inside = (places >= ends(0, -1)) & (places < ends(1, np.iinfo(np.int64).max))
    if kept is not None:
        inside = inside & kept.unsqueeze((0,))
    if bags.reduction == "ReduceMax":
        return _reduced(b, bags.reduction, rows.unsqueeze((0,)), inside.unsqueeze((2,)))
    members = inside.cast(ElementType.FLOAT)
    total = members @ rows
    if bags.reduction == "ReduceSum":
        return total
    number = members.sum((1,))
    return total / b.where(number > 0, number, 1)


def _size(bags: _Bags, graph: Graph) -> int | None:
    """The size of every bag, where all have one and there are no other rows; else None."""
    outer = Expressions(graph, {})
    offsets = outer.array(bags.offsets)
    if offsets is None:
        return _size_by_shape(bags, graph, outer)
    steps = np.unique(np.diff(offsets.ravel()))
    rows = outer.of(bags.rows)
    total = outer.count(rows)
    regular = steps.size == 1 and steps[0] > 0 and offsets.ravel()[0] == 0 and total == offsets.ravel()[-1]
    return int(steps[0]) if regular else None


def _size_by_shape(bags: _Bags, graph: Graph, outer: Expressions) -> int | None:
    """As `_size`, for bags that are the rows of an input whose number of rows is free."""
    x = outer.indices(outer.of(bags.rows))
    tensor = graph.inputs.get(x) if isinstance(x, str) else None
    if (
        tensor is None
        or tensor.shape is None
        or len(tensor.shape) != 2
        or not isinstance(tensor.shape[1], int)
    ):
        return None
    size = tensor.shape[1]
    limit = ("Mul", ("Shape", x, 0, 1), size)
    found = outer.of(bags.offsets)
    return size if found[:2] == ("Concat", ("Range", 0, limit, size)) and len(found) == 3 else None
