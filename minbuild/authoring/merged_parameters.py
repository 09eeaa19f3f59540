"""Parameters that an exporter merged because their initial values are equal, such as biases of zeros, apart again.

PyTorch's older exporter, which Keras uses too, keeps one of several equal initializers, and says nothing of it; trained
as they are, the layers would share what they share by chance. Layers that share on purpose share their weights too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from minbuild.ir import Graph, Node
from minbuild.options.did_you_mean import listed

_PASSES_ON = ("Cast", "Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Dropout")
_Use = tuple[int, int]  # the number of a node and of its input


def with_merged_parameters_apart(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph with a copy of each initializer of equal numbers for every weight beside which it is used, and a note
    that names them. A weight is a matrix or more whose numbers differ; an initializer stays one for all of its uses
    beside the same weight."""
    uses: dict[str, list[_Use]] = defaultdict(list)
    for number, node in enumerate(graph.nodes):
        for place, name in enumerate(node.inputs):
            if name in graph.initializers:
                uses[name].append((number, place))
    suspects = [
        name for name, found in uses.items() if len(found) > 1 and _is_initial(graph.initializers[name])
    ]
    if not suspects:
        return graph, ()
    neighbours = _Neighbours(graph)
    taken = {*graph.initializers, *graph.inputs, *(name for node in graph.nodes for name in node.outputs)}
    renamed: dict[_Use, str] = {}
    copies: dict[str, np.ndarray] = {}
    merged = []
    for name in suspects:
        groups: dict[str, list[_Use]] = defaultdict(list)
        for use in uses[name]:
            groups[neighbours.weight_beside(neighbours.reader(*use))].append(use)
        groups.pop("", None)  # beside no weight: what belongs together is not known
        later = list(groups.values())[1:]
        for own in later:
            copy = _unused(name, taken)
            taken.add(copy)
            copies[copy] = graph.initializers[name]
            renamed |= dict.fromkeys(own, copy)
        if later:
            merged.append(name)
    if not merged:
        return graph, ()
    nodes = tuple(_renamed(number, node, renamed) for number, node in enumerate(graph.nodes))
    note = (
        f"{listed(merged)}: of parameters with equal initial values, such as biases of zeros, the exporter keeps one "
        "for several layers. They are apart again, one for each weight beside which they are used, and train so."
    )
    return replace(graph, nodes=nodes, initializers={**graph.initializers, **copies}), (note,)


def _is_initial(array: np.ndarray) -> bool:
    """True for several real numbers that are all the same, as initial values are."""
    return array.dtype.kind == "f" and array.size > 1 and bool((array == array.flat[0]).all())


def _renamed(number: int, node: Node, renamed: Mapping[_Use, str]) -> Node:
    inputs = tuple(renamed.get((number, place), name) for place, name in enumerate(node.inputs))
    return node if inputs == node.inputs else replace(node, inputs=inputs)


def _unused(name: str, taken: Collection[str]) -> str:
    return next(n for i in range(1, len(taken) + 2) if (n := f"{name}.{i}") not in taken)


class _Neighbours:
    """The weights of a graph, as seen from its nodes."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes
        self.producers = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
        self.readers: dict[str, list[int]] = defaultdict(list)
        for i, node in enumerate(graph.nodes):
            for name in node.inputs:
                self.readers[name].append(i)
        self.weights = {
            name
            for name, array in graph.initializers.items()
            if array.ndim > 1 and array.dtype.kind in "fV" and not _is_initial(array)
        }

    def reader(self, number: int, place: int) -> int:
        """The node that a value reaches: not one that passes its first input on, but the first behind it."""
        while self.nodes[number].op_type in _PASSES_ON and place == 0:
            found = self.readers.get(self.nodes[number].outputs[0])
            if not found:
                break
            number, behind = found[0], number
            place = self.nodes[number].inputs.index(self.nodes[behind].outputs[0])
        return number

    def weight_beside(self, number: int) -> str:
        """The weight of the layer that a node is part of: its own, else that of the node before it, else the next one
        behind; empty where there is none."""
        return next((w for w in (self._own(number), self._before(number), self._behind(number)) if w), "")

    def _own(self, number: int) -> str:
        return next((name for name in self.nodes[number].inputs if name in self.weights), "")

    def _before(self, number: int) -> str:
        for at in self._made_by(number):
            while (
                self.nodes[at].op_type in _PASSES_ON and (above := next(self._made_by(at), None)) is not None
            ):
                at = above
            if weight := self._own(at):
                return weight
        return ""

    def _made_by(self, number: int) -> Iterator[int]:
        return (self.producers[name] for name in self.nodes[number].inputs if name in self.producers)

    def _behind(self, number: int) -> str:
        waiting, seen = deque([number]), {number}
        while waiting:
            at = waiting.popleft()
            if weight := self._own(at):
                return weight
            for name in self.nodes[at].outputs:
                for reader in self.readers.get(name, ()):
                    if reader not in seen:
                        seen.add(reader)
                        waiting.append(reader)
        return ""
