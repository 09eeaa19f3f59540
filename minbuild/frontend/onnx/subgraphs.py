"""Graphs inside of nodes (If, Loop, Scan): what they read from around them, and copies of them under other names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from minbuild.ir import Graph, Node

Rename = Callable[[str], str]


def graphs_in(node: Node) -> Iterator[Graph]:
    """The graphs among a node's attributes."""
    return (value for value in node.attributes.values() if isinstance(value, Graph))


def names_read(node: Node) -> set[str]:
    """The values that a node reads: its inputs, and what its graphs read from around them."""
    found = set(node.inputs) - {""}
    for graph in graphs_in(node):
        found |= captured(graph)
    return found


def has_domain(graph: Graph, domain: str) -> bool:
    """True if operators of `domain` are among the nodes of a graph, or of the graphs inside of them."""
    return any(n.domain == domain or any(has_domain(g, domain) for g in graphs_in(n)) for n in graph.nodes)


def captured(graph: Graph) -> set[str]:
    """The values that a graph reads and does not define."""
    read = {name for node in graph.nodes for name in names_read(node)} | set(graph.outputs)
    return read - defined(graph) - {""}


def defined(graph: Graph) -> set[str]:
    """The values that a graph defines: inputs, constants and the results of its nodes."""
    made = {name for node in graph.nodes for name in node.outputs}
    return made | set(graph.inputs) | set(graph.sequences) | set(graph.initializers)


def renamed(node: Node, rename: Rename, prefix: str) -> Node:
    """The node with every value under the name that `rename` gives it, in its graphs too, and `prefix` before its own
    name. `node` may hold graphs."""
    inputs, outputs = (tuple(rename(n) if n else n for n in names) for names in (node.inputs, node.outputs))
    attributes = with_graphs(node.attributes, lambda graph: _renamed_graph(graph, rename))
    return replace(node, name=f"{prefix}/{node.name}", inputs=inputs, outputs=outputs, attributes=attributes)


def with_graphs(attributes: Mapping[str, Any], change: Callable[[Graph], Graph]) -> dict[str, Any]:
    """Attributes with every graph changed."""
    return {n: change(value) if isinstance(value, Graph) else value for n, value in attributes.items()}


def _renamed_graph(graph: Graph, rename: Rename) -> Graph:
    """A graph that reads what is around it under other names; its own names stay."""
    own = defined(graph)

    def outer(name: str) -> str:
        return name if name in own or not name else rename(name)

    nodes = tuple(
        replace(
            node,
            inputs=tuple(outer(n) for n in node.inputs),
            attributes=with_graphs(node.attributes, lambda inner: _renamed_graph(inner, outer)),
        )
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes, outputs=tuple(outer(n) for n in graph.outputs))
