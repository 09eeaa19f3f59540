"""A Scan as one call of a program: its body is a procedure of its own, which passes rewrite like any other until
`rewrite/expand_loops` puts it in the place of the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from minbuild.frontend.onnx.loops import directions, unchanged_states
from minbuild.frontend.onnx.subgraphs import renamed
from minbuild.frontend.onnx.unrolling import Scope
from minbuild.ir import Call, Graph, Node, Procedure, Role, TensorType, Value
from minbuild.ir.dims import Dim
from minbuild.ops import Registry
from minbuild.ops.core.definition import HALVES
from minbuild.ops.movement.copy import COPY
from minbuild.passes.analysis.effects import updates_in_place

LOOP = "minbuild:Scan"
LONGEST_BODY = 120  # calls; a plan counts the steps of a loop in a byte


def bodies(procedure: Procedure) -> Iterator[Procedure]:
    """The bodies of its loops."""
    return (call.attributes["body"] for call in procedure.calls if call.op == LOOP)


def with_bodies(procedure: Procedure, rewrite: Callable[[Procedure], Procedure]) -> Procedure:
    """`procedure` with the bodies of its loops, then itself, as `rewrite` makes them."""
    if any(True for _ in bodies(procedure)):
        calls = (
            replace(c, attributes={**c.attributes, "body": rewrite(c.attributes["body"])})
            if c.op == LOOP
            else c
            for c in procedure.calls
        )
        procedure = replace(procedure, calls=tuple(calls))
    return rewrite(procedure)


class Builder(Protocol):
    """A graph being lowered (`program_builder.Lowering`), as far as loops need it."""

    graph: Graph
    registry: Registry
    findings: list[str]
    values: dict[str, Value]
    known: dict[str, np.ndarray]
    calls: list[Call]
    alias: dict[str, str]

    def add_constant(self, name: str, array: np.ndarray) -> None:
        """A value known now."""

    def node(self, node: Node, origin: str = "") -> None:
        """Adds the calls for `node`."""


def body_graph(node: Node, scope: Scope) -> Graph:
    """The body of a Scan under names of its own: `unchanged` states have the names around it, others those of the
    node's output with the round's before them. `scope` knows the values around it."""
    graph: Graph = node.attributes["body"]
    count = int(node.attributes["num_scan_inputs"])
    states = len(node.inputs) - count
    prefix = f"{node.outputs[0]}/round"
    unchanged = unchanged_states(node)
    names = {}
    inputs: dict[str, TensorType] = {}
    for i, (inner, outer) in enumerate(zip(graph.inputs, node.inputs, strict=True)):
        names[inner] = outer if i in unchanged else f"{prefix}/{inner}"
        shape = scope.shape(outer)
        inputs[names[inner]] = TensorType(scope.element(outer), shape if i < states else shape[1:])
    made = (*graph.initializers, *(n for each in graph.nodes for n in each.outputs if n))
    names |= {n: f"{prefix}/{n}" for n in made}
    nodes = tuple(renamed(each, lambda n: names.get(n, n), prefix) for each in graph.nodes)
    outputs = [names.get(n, n) for i, n in enumerate(graph.outputs) if i not in unchanged]
    initializers = {names[n]: a for n, a in graph.initializers.items()}
    return replace(
        graph,
        source=node.name,
        nodes=tuple(n for n in nodes if not _only_passes(n, graph, node, names)),
        inputs=inputs,
        outputs=tuple(outputs),
        initializers=initializers,
    )


def _named(node: Node, inner: str) -> str:
    """The name of a value of the body of `node` that changes from round to round."""
    return f"{node.outputs[0]}/round/{inner}"


def _only_passes(inner: Node, graph: Graph, node: Node, names: Mapping[str, str]) -> bool:
    """True for the Identity that hands an unchanged state on."""
    ends = {names.get(graph.outputs[i]) for i in unchanged_states(node)}
    read = {n for each in graph.nodes for n in each.inputs}
    return inner.op_type == "Identity" and inner.outputs[0] in ends - {names.get(n) for n in read}


def loop_call(
    node: Node, scope: Builder, inner: Builder, rounds: Dim, guard: str = ""
) -> tuple[Call | None, Mapping[str, Value]]:
    """The call that stands for the Scan `node` of `rounds` rounds, and the values of its results; None where it has to
    be unrolled. `scope` is the lowering around it, `inner` that of its body, with nothing in it yet; `guard` is the
    input of the body that says whether a round runs. Raises UnsupportedUse."""
    graph = inner.graph
    count = int(node.attributes["num_scan_inputs"])
    entry = directions(node, "scan_input_directions", count)
    states = len(node.inputs) - count
    unchanged = [node.inputs[i] for i in unchanged_states(node)]
    carried = [i for i in range(states) if i not in unchanged_states(node)]
    for name, tensor in graph.inputs.items():
        around = scope.values.get(name) if name in unchanged else None
        content = scope.known.get(name) if around is not None else None
        if content is not None:
            inner.add_constant(name, content)
        elif around is not None and around.role is not Role.TEMPORARY:
            inner.values[name] = around
        else:
            inner.values[name] = Value(name, tensor, Role.INPUT)
    for name, array in graph.initializers.items():
        inner.add_constant(name, np.asarray(array))
    for each in graph.nodes:
        inner.node(each)
    if inner.findings or len(inner.calls) > LONGEST_BODY or inner.alias:
        return None, {}
    registry = scope.registry
    if any(updates_in_place(c, registry) or registry.ops[c.op].generator is not None for c in inner.calls):
        return None, {}
    if any(value.type.element in HALVES for value in inner.values.values()):
        return None, {}
    inputs = list(graph.inputs)
    entering = [n for i, n in enumerate(inputs) if i in carried] if len(inputs) == len(node.inputs) else None
    if entering is None:
        return None, {}
    results = tuple(_made(inner, node, i) for i in range(len(graph.outputs)))
    running = _named(node, guard) if guard else ""
    slices = inputs[states:]
    for before, after in zip(entering, results, strict=False):
        if inner.values[before].type != inner.values[after].type:
            return None, {}
    values = {}
    for i, after in zip(carried, results, strict=False):
        values[node.outputs[i]] = Value(node.outputs[i], inner.values[after].type)
    stacked = node.outputs[states:]
    read = {running, *(n for c in inner.calls for n in c.inputs)}
    sources = [
        (n, node.inputs[states + i], way) for i, (n, way) in enumerate(zip(slices, entry, strict=True))
    ]
    sources = [each for each in sources if each[0] in read]  # others only count rounds
    for name, after in zip(stacked, results[len(carried) :], strict=True):
        one = inner.values[after].type
        values[name] = Value(name, replace(one, shape=(rounds, *(one.shape or ()))))
    body = Procedure(
        "loop",
        source=scope.graph.source,
        calls=tuple(inner.calls),
        values=inner.values,
        inputs=(*entering, *(n for n, *_ in sources)),
        outputs=results,
        alias=inner.alias,
    )
    outer = [n for n in dict.fromkeys(unchanged) if n not in inner.known]
    call = Call(
        LOOP,
        1,
        node.name,
        inputs=(*(node.inputs[i] for i in carried), *(n for _, n, _ in sources), *outer),
        outputs=(*(node.outputs[i] for i in carried), *stacked),
        attributes={
            "body": body,
            "carried": len(carried),
            "backward": (
                *(way for *_, way in sources),
                *directions(node, "scan_output_directions", len(stacked)),
            ),
            "rounds": rounds,
            "guard": running,
        },
    )
    return call, values


def _made(inner: Builder, node: Node, i: int) -> str:
    """Result `i` of the body that `inner` has lowered, as a value that a call of its own makes: what is a state or a
    slice itself, a constant, or another result as well, is copied."""
    name = inner.graph.outputs[i]
    if name not in {*inner.graph.inputs, *inner.known, *inner.graph.outputs[:i]}:
        return name
    copy = f"{name} (result {i})"
    inner.values[copy] = Value(copy, inner.values[name].type)
    inner.calls.append(Call(COPY, 1, node.name, (name,), (copy,)))
    return copy
