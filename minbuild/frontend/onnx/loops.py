"""Scans that stay loops: which do, and the one form that differentiation and lowering see.

In that form everything that the body reads from around it enters as a state that never changes, except for constants,
which the body has itself. So the inputs of the node are all that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from minbuild.frontend.onnx.common_subexpressions import without_repetitions
from minbuild.frontend.onnx.subgraphs import captured, graphs_in
from minbuild.frontend.onnx.unrolling import Scope
from minbuild.ir import ElementType, Graph, Node, TensorType
from minbuild.ir.dims import Dim

# Fewer are unrolled. Loops win from two rounds on: an LSTM as a Scan of 32 units over 2, 4 and 8 inputs of 16 has as a
# loop 20,168, 20,312, 20,304 bytes of library and plan (unrolled 21,000, 23,472, 28,520), 120, 122, 126 KB of RAM (152,
# 201, 269, as each round's gradient of the weights is one of its own), and its steps take 62, 75, 99 us (87, 79, 105);
# compiled in 16,456, 16,488, 16,488 bytes (16,680, 17,464, 19,336). An Elman cell is alike.
LEAST_ROUNDS = 2
LARGEST_CONSTANT = 16  # real numbers that a body gets a copy of; whole ones, such as axes, always
_ANY = TensorType(ElementType.FLOAT, None)  # of inputs of a body, which follow from those of the node


def kept_loop(node: Node, scope: Scope, guarded: bool = False) -> Node | None:
    """The Scan `node` in the form that stays a loop, None for nodes that have to be unrolled: others than Scan, those
    along another axis than 0, with few rounds unless they are `guarded`, or with graphs inside of their body. `scope`
    knows the values around it."""
    if node.op_type != "Scan" or node.domain or node.version < 9:
        return None
    graph = node.attributes.get("body")
    count = int(node.attributes.get("num_scan_inputs", 0))
    if not isinstance(graph, Graph) or not count or len(graph.inputs) != len(node.inputs):
        return None
    if any(int(a) for key in ("scan_input_axes", "scan_output_axes") for a in node.attributes.get(key, ())):
        return None
    if any(True for inner in graph.nodes for _ in graphs_in(inner)) or not all(node.inputs):
        return None
    rounds = rounds_of(node, scope)
    if isinstance(rounds, int) and rounds < LEAST_ROUNDS and not guarded:
        return None
    return _closed(node, graph, count, scope)


def rounds_of(node: Node, scope: Scope) -> Dim:
    """The number of rounds of a Scan along axis 0."""
    return scope.shape(node.inputs[-1])[0]


def unchanged_states(node: Node) -> tuple[int, ...]:
    """Positions of the states that every round passes on as they are."""
    graph: Graph = node.attributes["body"]
    same = identities(graph.nodes)
    states = len(node.inputs) - int(node.attributes["num_scan_inputs"])
    pairs = zip(list(graph.inputs)[:states], graph.outputs, strict=False)
    return tuple(i for i, (before, after) in enumerate(pairs) if same.get(after, after) == before)


def identities(nodes: Sequence[Node]) -> dict[str, str]:
    """For the result of each Identity the value that it is."""
    same: dict[str, str] = {}
    for node in nodes:
        if node.op_type == "Identity" and not node.domain:
            same[node.outputs[0]] = same.get(node.inputs[0], node.inputs[0])
    return same


def directions(node: Node, key: str, count: int) -> tuple[int, ...]:
    """0 or 1 (backward) for each of `count` scan inputs or outputs of `node`, by its attribute `key`."""
    given = tuple(int(d) for d in node.attributes.get(key, ()))
    return given + (0,) * (count - len(given))


def _closed(node: Node, graph: Graph, count: int, scope: Scope) -> Node:
    """The node whose body reads nothing from around it."""
    graph = without_repetitions(graph)
    states = len(node.inputs) - count
    around = sorted(captured(graph))
    constants: dict[str, np.ndarray] = {}
    for name in around:
        content = scope.content(name)
        if content is None or content.dtype == object:
            continue
        if content.size <= LARGEST_CONSTANT or not scope.element(name).is_real:
            constants[name] = content
    read = [name for name in around if name not in constants]
    prefix = next(name for name in node.outputs if name)
    inner = list(graph.inputs.items())
    passed = [f"{name} unchanged" for name in read]
    copies = tuple(
        Node(
            "Identity", "", node.version, name=f"{prefix}/{name} unchanged", inputs=(name,), outputs=(after,)
        )
        for name, after in zip(read, passed, strict=True)
    )
    body = replace(
        graph,
        nodes=(*graph.nodes, *copies),
        inputs=dict([*inner[:states], *((n, _ANY) for n in read), *inner[states:]]),
        outputs=(*graph.outputs[:states], *passed, *graph.outputs[states:]),
        initializers={**graph.initializers, **constants},
    )
    unread = tuple(f"{prefix}/final {name}" for name in read)
    outputs = [name or f"{prefix}/unread {i}" for i, name in enumerate(node.outputs)]
    outputs += [f"{prefix}/unread {i}" for i in range(len(outputs), len(graph.outputs))]
    return replace(
        node,
        inputs=(*node.inputs[:states], *read, *node.inputs[states:]),
        outputs=(*outputs[:states], *unread, *outputs[states:]),
        attributes={**node.attributes, "body": body},
    )
