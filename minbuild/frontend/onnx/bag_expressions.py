"""Values of a graph as nested tuples, by which exported code is recognised: `("Add", x, 1)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from minbuild.ir import Graph, Node

Tree = Any  # a name, a number, or (operator, *operands)
NUMBER = ("number of the round",)
_CONSTANTS = frozenset({"value", "value_float", "value_floats", "value_int", "value_ints"})
_PASSING = frozenset({"Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_DEEPEST = 12  # nodes behind each other: exported bags have fewer
# Attributes that say what is so without them, by operator; those of other operators are not understood.
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "Concat": {"axis": 0},
    "Gather": {"axis": 0},
    "ReduceMax": {"keepdims": 1, "noop_with_empty_axes": 0},
    "ReduceMean": {"keepdims": 1, "noop_with_empty_axes": 0},
    "ReduceSum": {"keepdims": 1, "noop_with_empty_axes": 0},
}


class Expressions:
    """The values of `graph`. `named` are inputs by their trees, `outer` the values around it, which stay names unless
    they are `expanded`. Operators that only change the shape or the type of an index are left out."""

    def __init__(
        self, graph: Graph, named: Mapping[str, Tree], outer: Expressions | None = None, expanded: bool = True
    ) -> None:
        self.graph, self.named, self.outer, self.expanded = graph, named, outer, expanded
        self.maker = {n: each for each in graph.nodes for n in each.outputs if n}

    def of(self, name: str, deep: int = 0) -> Tree:
        """The tree of the value `name`, which is read `deep` nodes before the value that is recognised; its name, where
        it is an input or a constant of many whole numbers, or where those nodes are too many."""
        if name in self.named:
            return self.named[name]
        array = self.array(name)
        if array is not None:
            return _constant(array, name)
        node = self.maker.get(name)
        if node is None and self.outer is not None and name not in self.graph.inputs:
            return self.outer.of(name, deep) if self.expanded else name
        return name if node is None or deep > _DEEPEST else self._tree(node, name, deep + 1)

    def array(self, name: str) -> np.ndarray | None:
        """A constant of the graph or around it."""
        if name in self.graph.initializers:
            return np.asarray(self.graph.initializers[name])
        node = self.maker.get(name)
        if node is None:
            return None if self.outer is None or name in self.graph.inputs else self.outer.array(name)
        if node.op_type != "Constant" or node.domain:
            return None
        return next((np.asarray(v) for n, v in node.attributes.items() if n in _CONSTANTS), None)

    def _tree(self, node: Node, name: str, deep: int) -> Tree:
        """The tree of the result `name` of `node`."""
        if node.domain:
            return name
        if node.op_type in _PASSING:
            return self.of(node.inputs[0], deep)
        if node.op_type == "If":
            return self._choice(node, name, deep)
        if node.op_type == "Loop":
            return self._collection(node, name, deep)
        operands = [self.of(n, deep) if n else "" for n in node.inputs]
        attributes = dict(node.attributes)
        if node.op_type == "Shape":
            operands += [attributes.pop(n) for n in ("start", "end") if n in attributes]
        if attributes.get("axes") == (0,):
            operands.append(attributes.pop("axes") and 0)
        defaults = _DEFAULTS.get(node.op_type, {})
        if any(n not in defaults or defaults[n] != value for n, value in attributes.items()):
            return name
        return self._known(node, operands)

    def _known(self, node: Node, operands: list[Tree]) -> Tree:
        """The tree of `node`, or its value where that follows from constants: the exporter may fold them or not."""
        op_type, first = node.op_type, operands[0] if operands else ""
        if op_type == "Equal" and all(isinstance(o, int) for o in operands):
            return first == operands[1]
        if op_type == "Shape" and (array := self.array(node.inputs[0])) is not None:
            sizes = array.shape[node.attributes.get("start", 0) : node.attributes.get("end")]
            return sizes[0] if len(sizes) == 1 else (op_type, *operands)
        tuples = all(isinstance(o, tuple) for o in operands)
        if op_type == "Expand" and tuples and first[:1] == ("zeros",) and operands[1][:1] == ("Concat",):
            return ("zeros", *operands[1][1:])
        return (op_type, *operands)

    def _choice(self, node: Node, name: str, deep: int) -> Tree:
        """("If", condition, value of the one branch, value of the other); the one that a constant chooses."""
        place = node.outputs.index(name)
        branches = [node.attributes.get(key) for key in ("then_branch", "else_branch")]
        values = [
            Expressions(g, {}, self).of(g.outputs[place], deep) for g in branches if isinstance(g, Graph)
        ]
        condition = self.of(node.inputs[0], deep)
        return values[not condition] if isinstance(condition, bool) else ("If", condition, *values)

    def _collection(self, node: Node, name: str, deep: int) -> Tree:
        """("Loop", condition, start, first, goes on, (next, collected)) of a loop without a limit that counts state 0
        and collects state 1, which is `first` before, and the result `name`."""
        body = node.attributes.get("body")
        if not isinstance(body, Graph) or node.inputs[0] or len(node.inputs) != 4:
            return name
        inner, result = list(body.inputs)[2:], node.outputs.index(name)
        order = (1 - result, result)
        states = {inner[i]: ("state", k) for k, i in enumerate(order)}
        inside = Expressions(body, states, self)
        before = [self.of(node.inputs[2 + i], deep) for i in order]
        after = tuple(inside.of(body.outputs[1 + i], deep) for i in order)
        return ("Loop", self.of(node.inputs[1], deep), *before, inside.of(body.outputs[0], deep), after)

    def indices(self, rows: Tree) -> Tree:
        """The indices by which `rows` are taken out of a table, each perhaps with a weight."""
        taken: Iterable[Tree] = rows[1:] if rows[0] == "Mul" else (rows,)
        return next((each[2] for each in taken if each[0] == "Gather" and len(each) == 3), None)

    def count(self, rows: Tree) -> int | None:
        """The number of rows that are taken so, where it is known."""
        name = self.indices(rows)
        tensor = self.graph.inputs.get(name) if isinstance(name, str) else None
        shape = None if tensor is None else tensor.shape
        return prod(int(str(d)) for d in shape) if shape and all(isinstance(d, int) for d in shape) else None


def _constant(array: np.ndarray, name: str) -> Tree:
    """A number; () for none; ("zeros", *shape) for real ones that are 0; else the name."""
    if array.dtype.kind not in "biu":
        return name if array.any() or not array.size else ("zeros", *array.shape)
    return name if array.size > 1 else () if not array.size else array.ravel().tolist()[0]
