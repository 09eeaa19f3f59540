"""Common subexpressions of a loop's body: nodes that compute the same of the same values are one node. Exporters write
down what a program wrote twice, and so do gradients of values that a backward loop computes again; every copy is a step
of each round, and bytes of the plan."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

import numpy as np

from minbuild.ir import Graph, Node

_DRAWING = frozenset({"Bernoulli", "Dropout", "Multinomial"})  # and those whose names begin with Random


def without_repetitions(graph: Graph) -> Graph:
    """`graph` without nodes that repeat another one. Nodes that make its results, draw random numbers or are of another
    domain than ONNX's stay."""
    results = set(graph.outputs)
    named: dict[str, str] = {}
    found: dict[Hashable, Node] = {}
    nodes: list[Node] = []
    for name, array in graph.initializers.items():
        first = found.setdefault(_content(array), Node("", "", 0, "", (), outputs=(name,)))
        named[name] = first.outputs[0]
    for node in graph.nodes:
        node = replace(node, inputs=tuple(named.get(n, n) for n in node.inputs))
        key = None if results.intersection(node.outputs) else _key(node)
        first = node if key is None else found.setdefault(key, node)
        if first is node:
            nodes.append(node)
        named.update(zip(node.outputs, first.outputs, strict=True))
    return replace(graph, nodes=tuple(nodes))


def _key(node: Node) -> Hashable | None:
    """The key that equal nodes have in common; None for one that is equal to no other."""
    if node.domain or node.op_type in _DRAWING or node.op_type.startswith("Random"):
        return None
    value = node.attributes.get("value")
    if node.op_type == "Constant" and isinstance(value, np.ndarray):
        return _content(value)
    attributes = tuple((n, _hashable(a)) for n, a in sorted(node.attributes.items()))
    there = tuple(bool(n) for n in node.outputs)
    return node.op_type, node.version, node.inputs, there, attributes


def _hashable(attribute: object) -> Hashable:
    if isinstance(attribute, np.ndarray):
        return _content(attribute)
    if isinstance(attribute, Iterable) and not isinstance(attribute, (str, bytes)):
        return tuple(map(_hashable, attribute))
    return attribute if isinstance(attribute, Hashable) else id(attribute)


def _content(array: np.ndarray) -> Hashable:
    whole = np.asarray(array)
    if whole.dtype == object:  # elements may be free dimensions
        return "constant", whole.shape, tuple(whole.ravel().tolist())
    return "constant", str(whole.dtype), whole.shape, whole.tobytes()
