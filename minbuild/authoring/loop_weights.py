"""Dequantizations of constants that only bodies of loops read move into them: there products read the codes in place,
as they do outside of loops. Before, a loop would read the whole matrix in float."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from minbuild.frontend.onnx.loops import identities
from minbuild.frontend.onnx.subgraphs import defined, names_read, renamed
from minbuild.ir import Graph, Node

_DEQUANTIZING = frozenset({"Dequantize", "DequantizeLinear"})
_PASSING = frozenset({"Identity", "Transpose"})
# Inputs of operators that read codes in place.
_READERS: Mapping[str, tuple[int, ...]] = {
    "Conv": (1,),
    "FusedMatMul": (1,),
    "Gather": (0,),
    "Gemm": (1,),
    "MatMul": (1,),
}


def with_weights_in_loops(graph: Graph) -> Graph:
    """The graph with such nodes in the bodies of Scan and Loop nodes that read their results."""
    if not any(map(_is_loop, graph.nodes)) or not any(n.op_type in _DEQUANTIZING for n in graph.nodes):
        return graph
    return _Moving(graph).result()


def _is_loop(node: Node) -> bool:
    body = node.attributes.get("body")
    return not node.domain and node.op_type in ("Loop", "Scan") and isinstance(body, Graph)


@dataclass
class _Moving:
    graph: Graph

    def result(self) -> Graph:
        constants = set(self.graph.initializers)
        constants |= {n.outputs[0] for n in self.graph.nodes if n.op_type == "Constant" and not n.domain}
        self.made: dict[
            str, Node
        ] = {}  # results of dequantizations of constants, and what only passes them on
        for node in self.graph.nodes:
            if (
                node.op_type in _DEQUANTIZING
                and constants.issuperset(filter(None, node.inputs))
                or node.op_type in _PASSING
                and not node.domain
                and node.inputs[0] in self.made
            ):
                self.made[node.outputs[0]] = node
        nodes = [self.without_states(node) if _is_loop(node) else node for node in self.graph.nodes]
        moved = self.only_in_loops(nodes)
        if not moved:
            return self.graph
        kept = (n for n in nodes if n.outputs[0] not in moved)
        return replace(self.graph, nodes=tuple(self.inside(n, moved) if _is_loop(n) else n for n in kept))

    def only_in_loops(self, nodes: list[Node]) -> set[str]:
        """Those results that products in bodies read, and nothing else but what moves with them."""
        readers: dict[str, list[Node]] = defaultdict(list)
        for node in nodes:
            for name in names_read(node):
                readers[name].append(node)
        moved: set[str] = set()
        for name in reversed(self.made):
            found = readers[name]
            inside = found and all(
                n.outputs[0] in moved or (_is_loop(n) and name not in n.inputs and _in_place(name, n))
                for n in found
            )
            if inside and name not in self.graph.outputs:
                moved.add(name)
        return moved

    def without_states(self, node: Node) -> Node:
        """A loop that reads such values from around it where it has passed them on as states."""
        body: Graph = node.attributes["body"]
        lead = 2 if node.op_type == "Loop" else 0  # the number of rounds and the condition
        count = len(node.inputs) - int(node.attributes.get("num_scan_inputs", 0)) - lead
        read = {n for each in self.graph.nodes for n in names_read(each)} | set(self.graph.outputs)
        inner, same = list(body.inputs), identities(body.nodes)
        after = body.outputs[lead // 2 :]
        gone = [
            i
            for i in range(count)
            if node.inputs[lead + i] in self.made
            and same.get(after[i], after[i]) == inner[lead + i]
            and (i >= len(node.outputs) or node.outputs[i] not in read)
        ]
        if not gone or len(inner) != len(node.inputs):
            return node
        names = {inner[lead + i]: node.inputs[lead + i] for i in gone}
        ends = {body.outputs[lead // 2 + i] for i in gone}
        body = replace(
            body,
            nodes=tuple(
                _renamed(each, names)
                for each in body.nodes
                if each.op_type != "Identity" or not ends.issuperset(each.outputs)
            ),
            inputs={n: t for n, t in body.inputs.items() if n not in names},
            outputs=tuple(n for k, n in enumerate(body.outputs) if k - lead // 2 not in gone),
        )
        return replace(
            node,
            inputs=tuple(n for k, n in enumerate(node.inputs) if k - lead not in gone),
            outputs=tuple(n for k, n in enumerate(node.outputs) if k not in gone),
            attributes={**node.attributes, "body": body},
        )

    def inside(self, node: Node, moved: set[str]) -> Node:
        """A loop with copies of the nodes that make what its body reads of `moved`."""
        body: Graph = node.attributes["body"]
        needed = {n for n in names_read(node) if n in moved}
        for name in reversed(self.made):
            if name in needed:
                needed |= set(self.made[name].inputs) & moved
        if not needed:
            return node
        prefix = next(filter(None, node.outputs))
        names = {n: f"{prefix}/{n}" for n in needed}
        copies = [
            replace(_renamed(self.made[n], names), name=f"{prefix}/{self.made[n].name}", outputs=(names[n],))
            for n in self.made
            if n in needed
        ]
        nodes = (*copies, *(_renamed(each, names) for each in body.nodes))
        return replace(node, attributes={**node.attributes, "body": replace(body, nodes=nodes)})


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node reading other values, under its own name."""
    return replace(renamed(node, lambda n: names.get(n, n), ""), name=node.name)


def _in_place(name: str, loop: Node) -> bool:
    """True if the body of `loop` reads a value in products, convolutions and gathers alone, perhaps transposed."""
    body: Graph = loop.attributes["body"]
    if name in defined(body) or name in body.outputs:
        return False
    return all(_reads(node, name, body) for node in body.nodes if name in names_read(node))


def _reads(node: Node, name: str, body: Graph) -> bool:
    if node.op_type in _PASSING and not node.domain:
        result = node.outputs[0]
        return result not in body.outputs and all(
            _reads(each, result, body) for each in body.nodes if result in names_read(each)
        )
    places = [i for i, n in enumerate(node.inputs) if n == name]
    return bool(places) and set(places) <= set(_READERS.get(node.op_type, ()))
