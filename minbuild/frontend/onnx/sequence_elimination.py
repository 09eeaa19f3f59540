"""Sequences of tensors are gone before a graph is looked at: exporters write one for each split, and take tensors out
of it by constant numbers.

Where a sequence goes elsewhere, or a number follows from what is computed, the graph stays as it is: then there is
no such operator, which lowering says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import Graph, Node


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Equal parts of a tensor, however many there are; without `kept`, parts of size 1 that lose their axis."""

    source: str
    axis: int
    size: int
    kept: bool


_Items = tuple[str, ...]  # the tensors of a sequence, where their number is known


class _Open(Exception):
    """A sequence that cannot be followed."""


def without_sequences(graph: Graph) -> Graph:
    """The graph with tensors only, as far as every sequence can be followed; else the graph as it is."""
    if not any(not n.domain and n.op_type in _RULES for n in graph.nodes):
        return graph
    try:
        return _Following(graph).result()
    except _Open:
        return graph


class _Following:
    """One graph on the way."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.initializers = dict(graph.initializers)
        self.sequences: dict[str, _Items | _Chunks] = {}
        self.constants: dict[str, np.ndarray] = dict(graph.initializers)

    def result(self) -> Graph:
        for node in self.graph.nodes:
            rule = None if node.domain else _RULES.get(node.op_type)
            if node.op_type == "Identity" and node.inputs[0] in self.sequences:
                self.sequences[node.outputs[0]] = self.sequences[node.inputs[0]]
                continue
            if rule is not None:
                rule(self, node)
                continue
            if node.op_type == "Constant" and not node.domain:
                self.constants[node.outputs[0]] = _constant(node.attributes)
            self._check(names_read(node))
            self.nodes.append(node)
        self._check(self.graph.outputs)
        return replace(self.graph, nodes=tuple(self.nodes), initializers=self.initializers)

    def _check(self, names: Any) -> None:
        if not self.sequences.keys().isdisjoint(names):
            raise _Open

    def number(self, node: Node, i: int, default: int = 0) -> int:
        """The constant number that input `i` is."""
        if i >= len(node.inputs) or not node.inputs[i]:
            return default
        content = self.constants.get(node.inputs[i])
        if content is None or content.size != 1:
            raise _Open
        return int(content.ravel()[0])

    def items(self, node: Node) -> _Items:
        """The tensors of the sequence that is the first input."""
        found = self.sequences.get(node.inputs[0])
        if not isinstance(found, tuple):
            raise _Open
        return found

    def constant(self, name: str, numbers: Any) -> str:
        """A new initializer."""
        self.initializers[name] = np.array(numbers, np.int64)
        return name

    def add(self, like: Node, op_type: str, inputs: _Items, outputs: _Items, **attributes: object) -> None:
        """A node in place of `like`."""
        name = f"{like.name}/{outputs[0]}" if len(outputs) > 1 else like.name
        self.nodes.append(
            Node(op_type, "", like.version, name=name, inputs=inputs, outputs=outputs, attributes=attributes)
        )

    # ------------------------------------------------------------------------------------------- operators

    def split(self, node: Node) -> None:
        axis, out = int(node.attributes.get("axis", 0)), node.outputs[0]
        if len(node.inputs) < 2 or not node.inputs[1]:
            kept = bool(node.attributes.get("keepdims", 1))
            self.sequences[out] = _Chunks(node.inputs[0], axis, 1, kept)
            return
        sizes = self.constants.get(node.inputs[1])
        if sizes is None:
            raise _Open
        if sizes.ndim == 0:
            self.sequences[out] = _Chunks(node.inputs[0], axis, int(sizes), True)
            return
        items = tuple(f"{out}_part_{i}" for i in range(sizes.size))
        self.sequences[out] = items
        if node.version < 13:
            self.add(node, "Split", node.inputs[:1], items, axis=axis, split=tuple(map(int, sizes)))
        else:
            self.add(node, "Split", (node.inputs[0], self.constant(f"{out}_sizes", sizes)), items, axis=axis)

    def construct(self, node: Node) -> None:
        self.sequences[node.outputs[0]] = node.inputs

    def insert(self, node: Node) -> None:
        items = self.items(node)
        at = self.number(node, 2, len(items))
        if at < len(items):
            at = _position(at, len(items))
        elif at > len(items):
            raise _Open
        self.sequences[node.outputs[0]] = (*items[:at], node.inputs[1], *items[at:])

    def erase(self, node: Node) -> None:
        items = self.items(node)
        at = _position(self.number(node, 1, len(items) - 1), len(items))
        self.sequences[node.outputs[0]] = (*items[:at], *items[at + 1 :])

    def at(self, node: Node) -> None:
        found, at, out = self.sequences.get(node.inputs[0]), self.number(node, 1), node.outputs[0]
        if isinstance(found, tuple):
            self.add(node, "Identity", (found[_position(at, len(found))],), node.outputs)
        elif found is None or at < 0:
            raise _Open
        elif not found.kept:
            index = self.constant(f"{out}_index", at)
            self.add(node, "Gather", (found.source, index), node.outputs, axis=found.axis)
        else:
            limits = [at * found.size], [(at + 1) * found.size], [found.axis]
            names = [
                self.constant(f"{out}_{n}", x) for n, x in zip(("start", "end", "axis"), limits, strict=True)
            ]
            self.add(node, "Slice", (found.source, *names), node.outputs)

    def length(self, node: Node) -> None:
        self.constants[node.outputs[0]] = length = np.array(len(self.items(node)), np.int64)
        self.add(node, "Constant", (), node.outputs, value=length)

    def concat(self, node: Node) -> None:
        items, axis, out = self.items(node), int(node.attributes["axis"]), node.outputs[0]
        if node.attributes.get("new_axis", 0):
            parts = tuple(f"{out}_part_{i}" for i in range(len(items)))
            for item, part in zip(items, parts, strict=True):
                if node.version < 13:
                    self.add(node, "Unsqueeze", (item,), (part,), axes=(axis,))
                else:
                    self.add(node, "Unsqueeze", (item, self.constant(f"{out}_axis", [axis])), (part,))
            items = parts
        self.add(node, "Concat", items, node.outputs, axis=axis)


_RULES: Mapping[str, Callable[[_Following, Node], None]] = {
    "SplitToSequence": _Following.split,
    "SequenceConstruct": _Following.construct,
    "SequenceEmpty": _Following.construct,
    "SequenceInsert": _Following.insert,
    "SequenceErase": _Following.erase,
    "SequenceAt": _Following.at,
    "SequenceLength": _Following.length,
    "ConcatFromSequence": _Following.concat,
}


def _position(number: int, count: int) -> int:
    """A position counted from the front."""
    if not -count <= number < count:
        raise _Open
    return number % count


def _constant(attributes: Mapping[str, Any]) -> np.ndarray:
    """The value of a Constant node; of other kinds than numbers, nothing that is a number."""
    return np.asarray(next(iter(attributes.values()), ()))
