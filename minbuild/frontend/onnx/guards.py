"""Guarded loops: Scans in which a state or a slice says whether a round still changes anything.

In such a body every other state is chosen, `Where(guard, new, before)`, the guard itself only becomes false
(`And(guard, ...)`), and every slice of a result is zero once it is: `Where(guard, slice, 0)`. So a round whose guard is
false need not run, and one that runs needs no choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from minbuild.frontend.onnx.loops import identities
from minbuild.frontend.onnx.unrolling import Scope
from minbuild.ir import Graph, Node


@dataclass(frozen=True)
class Guard:
    """The input of a body that says whether a round runs, the body without choices, and the nodes that choose, by the
    result of each."""

    name: str
    body: Graph
    choices: Mapping[str, Node]


def guard_of(node: Node, scope: Scope) -> Guard | None:
    """The guard of the Scan `node`; None where it has none. `scope` knows the values around."""
    graph: Graph = node.attributes["body"]
    states = len(node.inputs) - int(node.attributes["num_scan_inputs"])
    maker = {n: each for each in graph.nodes for n in each.outputs if n}
    same = identities(graph.nodes)
    for name in _conditions(graph, maker):
        i = list(graph.inputs).index(name)
        if any(size != 1 for size in scope.shape(node.inputs[i])[i >= states :]):  # chooses by element
            continue
        choices = _choices(name, graph, states, maker, same)
        if choices:
            nodes = tuple(_chosen(each, name) if each.outputs[0] in choices else each for each in graph.nodes)
            return Guard(name, replace(graph, nodes=nodes), choices)
    return None


def _conditions(graph: Graph, maker: Mapping[str, Node]) -> Sequence[str]:
    """Inputs of the body by which results are chosen."""
    nodes = (maker[n] for n in graph.outputs if n in maker)
    found = (each.inputs[0] for each in nodes if each.op_type == "Where" and not each.domain)
    return [n for n in dict.fromkeys(found) if n in graph.inputs]


def _choices(
    name: str, graph: Graph, states: int, maker: Mapping[str, Node], same: Mapping[str, str]
) -> dict[str, Node] | None:
    """The nodes that choose by the input `name`; None where a result does not depend on it as it must."""
    inputs, found = list(graph.inputs), {}
    for i, after in enumerate(graph.outputs):
        before = inputs[i] if i < states else ""
        if same.get(after, after) == (before or name) and before != name:
            continue
        each = maker.get(after)
        if each is None or each.domain:
            return None
        if before == name:
            fits = each.op_type == "And" and name in each.inputs
        else:
            fits = each.op_type == "Where" and each.inputs[0] == name
            fits = fits and (each.inputs[2] == before if before else _is_zero(each.inputs[2], graph, maker))
        if not fits:
            return None
        found[after] = each
    return found


def _is_zero(name: str, graph: Graph, maker: Mapping[str, Node]) -> bool:
    value = graph.initializers.get(name)
    if value is None and name in maker and maker[name].op_type == "Constant":
        value = maker[name].attributes.get("value")
    return isinstance(value, np.ndarray) and not value.any()


def _chosen(each: Node, name: str) -> Node:
    """The node as it is in rounds that run."""
    kept = each.inputs[1] if each.op_type == "Where" else next((n for n in each.inputs if n != name), name)
    return replace(each, op_type="Identity", inputs=(kept,))
