"""Loops that run as often as an input says, with a largest number of rounds that the recipe gives: they have room for
all of them, and a batch that asks for more is an error on the device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from minbuild.authoring.fixed_inputs import KnownContents, is_single_number
from minbuild.authoring.recipe import Recipe, Source
from minbuild.errors import BadInput
from minbuild.frontend.onnx.loop_bound import bound_of
from minbuild.frontend.onnx.subgraphs import renamed
from minbuild.ir import ElementType, Graph, Node
from minbuild.ops.core.definition import OpContext, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Value
from minbuild.options.did_you_mean import listed

_PASSING = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_WHOLE = (ElementType.INT32, ElementType.INT64)


def with_bounded_loops(model: Source, recipe: Recipe) -> Source:
    """`model` with at most as many rounds as `recipe.largest` says in each Loop whose number of rounds follows from an
    input that is one whole number. Raises BadInput for names of others."""
    for name, most in recipe.largest.items():
        model = replace(model, graph=_bounded(model, name, most))
    return model


def bounding_inputs(graph: Graph) -> tuple[str, ...]:
    """The inputs that may say how often a loop runs: those of one whole number."""
    return tuple(n for n, t in graph.inputs.items() if t.element in _WHOLE and is_single_number(t))


def _bounded(model: Source, name: str, most: int) -> Graph:
    graph = model.graph
    if name not in bounding_inputs(graph):
        raise BadInput(
            f"--max-dim {name}={most}: {model.path}: no input of one whole number, which would say how often a loop "
            f"runs: {listed(bounding_inputs(graph)) or 'there is none'}. Free dimensions stay free in artifacts; they "
            "are bounded where the trainer is built."
        )
    checked = f"{name} of at most {most}"
    loops: dict[int, list[Node]] = {}
    scopes = [_scope(graph, name, number) for number in (most, most + 1)]
    for node in graph.nodes:
        if node.op_type == "Loop" and not node.domain and len(node.inputs) > 1:
            rounds = [_rounds(node, scope) for scope in scopes]
            if rounds[0] is not None and rounds[0] != rounds[1]:  # it depends on the input
                given = bool(node.inputs[0]) and scopes[0].content(node.inputs[0]) is not None
                loops[id(node)] = _with_limit(node, rounds[0], given)
    if not loops:
        raise BadInput(
            f"--max-dim {name}={most}: {model.path}: no loop of the model runs as often as the input '{name}' says. "
            f"Leave it out, or fix the input: --dim {name}=..."
        )
    nodes = [part for node in graph.nodes for part in loops.get(id(node), [node])]
    read = [renamed(node, lambda n: checked if n == name else n, "") for node in nodes]
    named = [replace(new, name=old.name) for new, old in zip(read, nodes, strict=True)]
    return replace(graph, nodes=(*_check(graph, name, most, checked, model.opset), *named))


def _check(graph: Graph, name: str, most: int, checked: str, opset: int) -> list[Node]:
    """The nodes that make `checked`, the input itself, and fail where it is larger than `most`: by an index of 1 into a
    tensor of one element."""
    tensor = graph.inputs[name]
    b = GraphBuilder(OpContext({}, (tensor,), (None,), opset), (name,), (checked,), checked, opset)
    over = b.add("Max", b.x[0] - most, b.constant(0))
    nothing = b.add("Gather", b.constant(np.zeros(1)), over, axis=0)
    b.add("Add", b.x[0], nothing)
    return [*b.nodes[:-1], replace(b.nodes[-1], outputs=(checked,))]


def _rounds(node: Node, scope: KnownContents) -> int | None:
    body = node.attributes.get("body")
    try:
        bound = bound_of(node, body, scope) if isinstance(body, Graph) else None
    except UnsupportedUse:  # it needs shapes
        return None
    return bound.rounds if bound is not None and isinstance(bound.rounds, int) else None


def _with_limit(node: Node, rounds: int, given: bool) -> list[Node]:
    """The Loop with a constant limit; where its number of rounds was `given`, its condition compares the number of the
    round with that."""
    limit = f"{node.outputs[0]}/most rounds"
    value = {"value": np.array(rounds)}
    constant = Node("Constant", "", node.version, limit, inputs=(), outputs=(limit,), attributes=value)
    if not given:
        return [constant, replace(node, inputs=(limit, *node.inputs[1:]))]
    body: Graph = node.attributes["body"]
    prefix = f"{node.outputs[0]}/goes on"
    context = OpContext({}, (), (), node.version)
    b = GraphBuilder(context, (), (), prefix, node.version)
    number = _scalar(b, node.inputs[0])
    start = b.constant(0, ElementType.INT64) < number
    if node.inputs[1]:
        start = start & _scalar(b, node.inputs[1])
    inside = GraphBuilder(context, (), (), f"{prefix} inside", node.version)
    count = Value(inside, next(iter(body.inputs)), ElementType.INT64)
    going = _scalar(inside, count.name) + 1 < Value(inside, number.name)
    if node.inputs[1]:
        going = going & _scalar(inside, body.outputs[0])
    body = replace(body, nodes=(*body.nodes, *inside.nodes), outputs=(going.name, *body.outputs[1:]))
    inputs = (limit, start.name, *node.inputs[2:])
    return [constant, *b.nodes, replace(node, inputs=inputs, attributes={**node.attributes, "body": body})]


def _scalar(b: GraphBuilder, name: str) -> Value:
    """One number as a tensor without dimensions, of int64 unless it is a truth value."""
    return b.add("Reshape", Value(b, name, ElementType.INT64), b.integers(()))


def _scope(graph: Graph, name: str, number: int) -> KnownContents:
    """The single whole numbers that are known where the input `name` of `graph` is `number`."""
    known = {n: a for n, a in graph.initializers.items() if a.size == 1}
    known[name] = np.array(number)
    for node in graph.nodes:
        value = node.attributes.get("value") if node.op_type == "Constant" else None
        if isinstance(value, np.ndarray) and value.size == 1:
            known[node.outputs[0]] = value
        elif node.op_type in _PASSING and not node.domain and node.inputs[0] in known:
            known[node.outputs[0]] = known[node.inputs[0]]
    return KnownContents(known)
