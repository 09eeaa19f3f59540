"""The parts that unrolling an If, a Loop and a Scan share: copies of inner graphs, conditions, gates, selections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from minbuild.frontend.onnx.subgraphs import graphs_in, renamed
from minbuild.ir import ElementType, Graph, Node, Shape
from minbuild.ops.core.definition import OpContext, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Value

MOST_ROUNDS = 4096


class Scope(Protocol):
    """The known values around a node."""

    def content(self, name: str) -> np.ndarray | None:
        """The content of a value, where it is known."""

    def shape(self, name: str) -> Shape:
        """The dimensions of a value."""

    def element(self, name: str) -> ElementType:
        """The element type of a value."""


class Unrolling:
    """One node being unrolled."""

    def __init__(self, node: Node, scope: Scope) -> None:
        self.node, self.scope = node, scope
        self.prefix = next(name for name in node.outputs if name)  # names of nodes may come twice
        self.written = GraphBuilder(
            OpContext({}, (), (), node.version), (), node.outputs, self.prefix, node.version
        )
        self.taken = 0  # of what was written

    def nodes(self) -> Iterator[Node]:
        raise NotImplementedError

    def graph(self, name: str) -> Graph:
        graph = self.node.attributes.get(name)
        if not isinstance(graph, Graph):
            raise UnsupportedUse(f"it has no attribute '{name}' with a graph")
        return graph

    def drain(self) -> Iterator[Node]:
        """The nodes written since the last call."""
        start, self.taken = self.taken, len(self.written.nodes)
        return iter(self.written.nodes[start:])

    def run(
        self, graph: Graph, arguments: Sequence[str], label: str, around: Mapping[str, str] | None = None
    ) -> tuple[list[Node], list[str]]:
        """A copy of a graph on these values: its nodes, and the names of its results. What it reads of the values
        `around` it has other names. `graph` is a body, `arguments` are the values of its inputs, `label` begins the
        names of nodes."""
        if len(arguments) != len(graph.inputs):
            raise UnsupportedUse(
                f"its graph takes {len(graph.inputs)} inputs, and {len(arguments)} are given"
            )
        prefix = f"{self.prefix}/{label}"
        names = {**(around or {}), **dict(zip(graph.inputs, arguments, strict=True))}
        nodes = []
        for name, array in graph.initializers.items():
            names[name] = f"{prefix}/{name}"
            value = {"value": array}
            nodes.append(
                Node(
                    "Constant",
                    "",
                    self.node.version,
                    name=names[name],
                    inputs=(),
                    outputs=(names[name],),
                    attributes=value,
                )
            )
        names |= {n: f"{prefix}/{n}" for inner in graph.nodes for n in inner.outputs if n}
        nodes += [renamed(inner, lambda n: names.get(n, n), prefix) for inner in graph.nodes]
        return nodes, [names.get(n, n) for n in graph.outputs]

    def bind_outputs(self, results: Sequence[str]) -> Iterator[Node]:
        """The results under the names of the node's outputs."""
        for result, name in zip(results, self.node.outputs, strict=False):
            if name and not result:
                raise UnsupportedUse(f"its output '{name}' has no rounds to be put together from")
            if name:
                yield Node(
                    "Identity",
                    "",
                    self.node.version,
                    name=f"{self.prefix}/{name}",
                    inputs=(result,),
                    outputs=(name,),
                )

    def stacked(self, rounds: Sequence[str], axis: int) -> str:
        """One value of the values of all rounds, along a new axis; "" of none."""
        if not rounds:
            return ""
        slices = [Value(self.written, name).unsqueeze([axis]) for name in rounds]
        return self.written.add("Concat", *slices, axis=axis).name

    def element(self, x: str, index: int, axis: int) -> str:
        """`x` at one index of an axis, without that axis. `index` counts from 0 along `axis`."""
        return self.written.add("Gather", x, self.number(index), axis=axis).name

    def number(self, value: int) -> str:
        return self.written.constant(value, ElementType.INT64).name

    def flag(self, name: str) -> bool | None:
        """A condition; None where it depends on data."""
        content = self.scope.content(name)
        return None if content is None or content.size != 1 else bool(content.ravel()[0])

    def condition(self, name: str) -> Value:
        """A condition that depends on data, without axes."""
        value = Value(self.written, name, ElementType.BOOL)
        return value.squeeze(tuple(range(len(self.scope.shape(name)))))

    def gated(self, names: Iterable[str], condition: Value) -> dict[str, str]:
        """By name, values through which gradients flow only if the condition holds."""
        return {
            name: self.written.microsoft("PassThrough", name, condition).name
            for name in names
            if self.scope.element(name).is_real and self.scope.content(name) is None
        }

    def selected(self, condition: Value, one: str, other: str, what: str) -> str:
        """One of two values. It is `one` where `condition` holds, else `other`; `what` names them in messages. Raises
        UnsupportedUse where their types differ."""
        kinds = [f"{self.scope.element(n).label}{list(self.scope.shape(n))}" for n in (one, other)]
        if kinds[0] != kinds[1]:
            raise UnsupportedUse(
                f"its condition depends on data, and {what} is {kinds[0]} or {kinds[1]}, as it may be. Both must be of "
                "one type and shape, which is fixed when the trainer is built: pad them to the larger"
            )
        chosen = (Value(self.written, n, self.scope.element(n)) for n in (one, other))
        return self.written.add("Where", condition, *chosen).name

    def check_effects(self, graph: Graph) -> None:
        """Raises UnsupportedUse for what changes more than its results: it would run in any case."""
        for node in graph.nodes:
            if node.op_type == "BatchNormalization" and node.attributes.get("training_mode", 0):
                raise UnsupportedUse(
                    f"its condition depends on data, and node '{node.name}' (BatchNormalization) inside updates "
                    "running statistics. Export the model with the normalisation in inference mode"
                )
            for inner in graphs_in(node):
                self.check_effects(inner)

    def check_rounds(self, count: int) -> None:
        if count >= MOST_ROUNDS:
            raise UnsupportedUse(f"it runs more than {MOST_ROUNDS} times. Give it fewer rounds")
