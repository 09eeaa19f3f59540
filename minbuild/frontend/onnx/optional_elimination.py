"""Optional values are gone before a graph is looked at: whether one has a tensor follows from the graph, wherever the
conditions around it are constants, both branches of an If give one, or every round of a Loop has what the one before it
had. A graph input of an optional type is fed with every batch.

Where the presence of a value follows from data, the graph stays as it is, and lowering refuses its Optional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.frontend.onnx.subgraphs import captured, graphs_in, with_graphs
from minbuild.ir import Graph, Node

_OPERATORS = frozenset({"Optional", "OptionalGetElement", "OptionalHasElement"})
_TRUTHS: Mapping[str, Callable[..., bool]] = {
    "Identity": bool,
    "Not": lambda x: not x,
    "And": lambda x, y: x and y,
    "Or": lambda x, y: x or y,
    "Xor": lambda x, y: x != y,
}


class _Open(Exception):
    """A value that has a tensor in some runs only."""


def without_optionals(graph: Graph) -> Graph:
    """The graph with tensors only, as far as the presence of every optional value can be followed; else the graph as it
    is."""
    if not _has_optionals(graph):
        return graph
    try:
        return _Following(set(), {}).result(graph)[0]
    except _Open:
        return graph


def _has_optionals(graph: Graph) -> bool:
    return any(
        (not n.domain and n.op_type in _OPERATORS) or any(_has_optionals(inner) for inner in graphs_in(n))
        for n in graph.nodes
    )


@dataclass
class _Following:
    """The names of the values without a tensor, and the conditions that are known, at a place of a graph."""

    absent: set[str]
    truths: dict[str, bool]
    nodes: list[Node] = field(default_factory=list)

    def result(self, graph: Graph) -> tuple[Graph, tuple[bool, ...]]:
        """The graph without optional values, and for each of its outputs if it has a tensor. Outputs that have none
        are left out. Raises _Open."""
        for name, array in graph.initializers.items():
            self.note(name, array)
        for node in graph.nodes:
            self.add(node)
        present = tuple(name not in self.absent for name in graph.outputs)
        return replace(graph, nodes=tuple(self.nodes), outputs=_kept(graph.outputs, present)), present

    def inner(self, graph: Graph, absent: Iterable[str] = ()) -> tuple[Graph, tuple[bool, ...]]:
        """`result` for a graph inside of a node, whose inputs `absent` have no tensor."""
        return _Following({*self.absent, *absent}, dict(self.truths)).result(graph)

    def note(self, name: str, content: object) -> None:
        if isinstance(content, np.ndarray) and content.dtype == np.bool_ and content.size == 1:
            self.truths[name] = bool(content.ravel()[0])

    def add(self, node: Node) -> None:
        """Adds the nodes that stand in place of `node`. Raises _Open."""
        node = replace(node, inputs=tuple("" if n in self.absent else n for n in node.inputs))
        rule = None if node.domain else _RULES.get(node.op_type)
        if rule is not None:
            rule(self, node)
            return
        if not node.domain and node.op_type == "Constant":
            self.note(node.outputs[0], node.attributes.get("value"))
        elif not node.domain and node.op_type in _TRUTHS and all(n in self.truths for n in node.inputs):
            self.truths[node.outputs[0]] = _TRUTHS[node.op_type](*(self.truths[n] for n in node.inputs))
        self.nodes.append(replace(node, attributes=with_graphs(node.attributes, self.whole)))

    def whole(self, graph: Graph) -> Graph:
        """A graph inside of a node whose results are tensors."""
        changed, present = self.inner(graph)
        if not all(present):
            raise _Open
        return changed

    # ------------------------------------------------------------------------------------------- operators

    def passed(self, node: Node) -> None:
        """Optional, OptionalGetElement and Identity: the tensor itself, or none."""
        if any(node.inputs):
            if node.inputs[0] in self.truths:
                self.truths[node.outputs[0]] = self.truths[node.inputs[0]]
            self.nodes.append(replace(node, op_type="Identity", attributes={}))
        elif node.op_type == "OptionalGetElement":
            self.nodes.append(node)  # refused, unless it is in a branch that is never taken
        else:
            self.absent.add(node.outputs[0])

    def has(self, node: Node) -> None:
        there = any(node.inputs)
        self.truths[node.outputs[0]] = there
        self.nodes.append(replace(node, op_type="Constant", inputs=(), attributes={"value": np.array(there)}))

    def choose(self, node: Node) -> None:
        """If: by a condition that is known, the branch that is taken stands in place of the other one, too."""
        taken = self.truths.get(node.inputs[0])
        keys = ("then_branch", "else_branch")
        graphs = [g for k in keys if isinstance(g := node.attributes.get(k), Graph)]
        if len(graphs) != len(keys):
            raise _Open
        if taken is not None and not all(_is_plain(g, self.absent) for g in graphs):
            graphs = [graphs[0 if taken else 1]] * 2
        (one, there), (other, there_too) = map(self.inner, graphs)
        if there != there_too:
            raise _Open
        self.absent.update(n for n, present in zip(node.outputs, there, strict=False) if not present)
        if any(there) or not there:
            attributes = {**node.attributes, **dict(zip(keys, (one, other), strict=True))}
            self.nodes.append(replace(node, outputs=_kept(node.outputs, there), attributes=attributes))

    def repeat(self, node: Node) -> None:
        """Loop: states keep a tensor, or have none, in all rounds."""
        graph = node.attributes.get("body")
        if not isinstance(graph, Graph) or len(graph.inputs) != len(node.inputs):
            raise _Open
        there = tuple(bool(n) for n in node.inputs[2:])
        names = list(graph.inputs)
        absent = [n for n, present in zip(names[2:], there, strict=True) if not present]
        body, after = self.inner(graph, absent)
        if after[1 : 1 + len(there)] != there or not all(after[1 + len(there) :]) or not after[0]:
            raise _Open
        self.absent.update(n for n, present in zip(node.outputs, after[1:], strict=False) if not present)
        body = replace(body, inputs={n: t for n, t in graph.inputs.items() if n not in absent})
        self.nodes.append(
            replace(
                node,
                inputs=(*node.inputs[:2], *_kept(node.inputs[2:], there)),
                outputs=_kept(node.outputs, after[1:]),
                attributes={**node.attributes, "body": body},
            )
        )


_RULES: Mapping[str, Callable[[_Following, Node], None]] = {
    "Optional": _Following.passed,
    "OptionalGetElement": _Following.passed,
    "OptionalHasElement": _Following.has,
    "Identity": _Following.passed,
    "If": _Following.choose,
    "Loop": _Following.repeat,
}


def _is_plain(graph: Graph, absent: set[str]) -> bool:
    """True for a graph without optional values, which may be a branch that is never taken."""
    return not _has_optionals(graph) and absent.isdisjoint(captured(graph))


def _kept(names: Sequence[str], present: Sequence[bool]) -> tuple[str, ...]:
    """Those of `names` that are `present`."""
    return tuple(n for n, there in zip(names, present, strict=False) if there)
