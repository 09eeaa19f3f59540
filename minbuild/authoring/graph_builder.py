"""A graph being continued: nodes, inputs and parameters added to it one by one, each with its type at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.onnx.sequence_elimination import without_sequences
from minbuild.ir import Graph, Node, Role, TensorType, Value
from minbuild.ir.dims import Dim
from minbuild.ops import Registry
from minbuild.passes.lowering.program_builder import Lowering
from minbuild.passes.lowering.symbol_unification import SymbolUnification

_MAKE_SEQUENCES = ("SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert")
_VERSIONS = {"ai.onnx.ml": 2}  # of domains that begin with others: the first with tables for LabelEncoder


class TypedGraphBuilder:
    """Writes behind `graph`. Free dimensions of its inputs get the sizes that nodes require, both the graph's and those
    written here. Methods raise Unsupported where a node's types do not fit its operator."""

    def __init__(
        self, graph: Graph, registry: Registry, opset: int, sizes: Mapping[str, Dim] | None = None
    ) -> None:
        """`sizes` fixes free dimensions of the graph's inputs, by name. `graph` is continued, in version `opset` of
        ONNX's own operators; `registry` has the shape rules."""
        self.start, self.registry, self.opset = graph, registry, opset
        self.inputs = dict(graph.inputs)
        self.initializers = dict(graph.initializers)
        self.nodes: list[Node] = []
        self._taken = {node.name for node in graph.nodes}
        self._imported = {node.domain: node.version for node in graph.nodes}
        self._sizes = SymbolUnification(dict(sizes or {}))
        self._sequences: list[Node] = []  # those that make sequences
        self._untyped: list[Node] = []  # those that read sequences of unknown length
        self._lowering = self._lowered(())

    def restart(self, graph: Graph, opset: int) -> None:
        """Goes on behind another graph, in which what was written so far is included."""
        self.__init__(graph, self.registry, opset, self._sizes.sizes)  # type: ignore[misc]

    def many(
        self, count: int, op_type: str, *inputs: str, domain: str = "", name: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Adds a node of `op_type` in `domain` with these inputs and attributes and returns the names of its `count`
        outputs. `name` is the node's own, by default made of its results."""
        node = self._node(count, op_type, inputs, domain, name=name, attributes=attributes)
        self.extend((node,))
        return node.outputs

    def add(self, op_type: str, *inputs: str, domain: str = "", name: str = "", **attributes: Any) -> str:
        """Adds a node with one output and returns its name; `op_type`, `domain` and `name` as of `many`."""
        return self.many(1, op_type, *inputs, domain=domain, name=name, **attributes)[0]

    def add_on_sequence(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """A node that reads an input which is a sequence, and makes one, at the end of the graph: its output's name."""
        node = self._node(1, op_type, inputs, domain, name="", attributes=attributes)
        self._untyped.append(node)
        return node.outputs[0]

    def _node(
        self,
        count: int,
        op_type: str,
        inputs: Sequence[str],
        domain: str,
        *,
        name: str,
        attributes: Mapping[str, Any],
    ) -> Node:
        """A node with `count` outputs under a name of its own, in the version of `domain` that the graph imports."""
        name = self.unused(name or f"composed/{op_type}")
        version = self._imported.get(domain, _VERSIONS.get(domain, 1)) if domain else self.opset
        outputs = tuple(f"{name}:{i}" for i in range(count))
        return Node(
            op_type, domain, version, name=name, inputs=tuple(inputs), outputs=outputs, attributes=attributes
        )

    def is_sequence(self, name: str) -> bool:
        """True if an input, or what comes of one, is a sequence of tensors of unknown number."""
        return name in self.start.sequences or any(name in node.outputs for node in self._untyped)

    def extend(self, nodes: Sequence[Node]) -> None:
        """Nodes written elsewhere. Raises BadInput where they use a sequence in a way that is not known beforehand."""
        on_tensors = self._followed(nodes)
        for node in on_tensors:
            self._lowering.node(node)
        if self._lowering.findings:
            self._lowering = self._lowered(on_tensors)
        self.nodes += on_tensors

    def _followed(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """The nodes with tensors in place of sequences, which are made of those that were put into them."""
        made = [n for n in nodes if n.op_type in _MAKE_SEQUENCES and not n.domain]
        if not made and not self._sequences:
            return nodes
        known = {n: a for n, a in self._lowering.known.items() if isinstance(a, np.ndarray)}
        graph = Graph(
            self.start.source,
            nodes=(*self._sequences, *nodes),
            inputs={},
            sequences={},
            outputs=(),
            initializers=known,
        )
        found = without_sequences(graph)
        if found is graph:
            kinds = ", ".join(dict.fromkeys(n.op_type for n in nodes))
            raise BadInput(f"{graph.source}: {kinds}: what is in its sequence is not known beforehand.")
        self._sequences += made
        for name, array in found.initializers.items():
            if name not in known:
                self.parameter(name, np.asarray(array))
        return found.nodes

    def constant(self, value: Any, like: str = "") -> str:
        """A constant, of the element type of value `like`; without one float, or int64 for whole numbers."""
        array = np.asarray(value)
        if like:
            array = array.astype(self.type_of(like).element.dtype)
        elif array.dtype == np.float64:
            array = array.astype(np.float32)
        return self.add("Constant", value=array)

    def input(self, name: str, tensor: TensorType) -> str:
        """An input of the model, one more or the one there is. Raises BadInput where that has another type."""
        there = self.inputs.get(name)
        if there is None and (name in self._lowering.values or name in self.initializers):
            raise BadInput(
                f"{self.start.source}: there is a value '{name}' already. Name the input otherwise."
            )
        if there is not None and (
            there.element is not tensor.element or len(there.shape or ()) != len(tensor.shape or ())
        ):
            raise BadInput(
                f"{self.start.source}: there is an input '{name}' of another type. Name the input otherwise."
            )
        if there is None:
            self.inputs[name] = tensor
            self._lowering.values[name] = Value(name, tensor, Role.INPUT)
        return name

    def parameter(self, name: str, array: np.ndarray) -> str:
        """An initializer. Raises BadInput where the name is taken."""
        if name in self._lowering.values:
            raise BadInput(
                f"{self.start.source}: there is a value '{name}' already. Name the parameter otherwise."
            )
        self.initializers[name] = array
        self._lowering.add_constant(name, array)
        return name

    def has(self, name: str) -> bool:
        """True if there is such a value."""
        return name in self._lowering.values

    def type_of(self, name: str) -> TensorType:
        """Element type and shape of a value. Raises BadInput where there is no such value."""
        if name not in self._lowering.values:
            raise BadInput(
                f"{self.start.source}: there is no value '{name}'. Name one of the model's values."
            )
        return self._lowering.values[name].type

    def parts(self, name: str) -> tuple[str, ...]:
        """The values that a SequenceConstruct put into a sequence. Raises BadInput where there is none of that name."""
        for node in self._sequences:
            if node.op_type == "SequenceConstruct" and name in node.outputs:
                return node.inputs
        raise BadInput(f"{self.start.source}: there is no sequence '{name}'. Make it with SequenceConstruct.")

    def unused(self, name: str) -> str:
        """A name for a node that no node has, that was not given before, and that begins with `name`."""
        candidate, number = name, 1
        while candidate in self._taken or f"{candidate}:0" in self._lowering.values:
            candidate, number = f"{name}_{number}", number + 1
        self._taken.add(candidate)
        return candidate

    def graph(self, outputs: Sequence[str]) -> Graph:
        """The whole, returning `outputs`."""
        return replace(
            self.start,
            nodes=(*self.start.nodes, *self.nodes, *self._untyped),
            inputs=self.inputs,
            initializers=self.initializers,
            outputs=tuple(dict.fromkeys(outputs)),
        )

    def _lowered(self, more: Sequence[Node]) -> Lowering:
        """The types of all values, `more` nodes written behind the others. Free dimensions are unified on the way."""
        while True:
            lowering = Lowering(self.start, self.registry, [], self._sizes)
            self.inputs = {n: t.substituted(self._sizes.sizes) for n, t in self.inputs.items()}
            for name, tensor in self.inputs.items():
                lowering.values[name] = Value(name, tensor, Role.INPUT)
            for name, array in self.initializers.items():
                lowering.add_constant(name, np.asarray(array))
            sequences = set(self.start.sequences)
            for node in (*self.start.nodes, *self.nodes, *more):
                if sequences.isdisjoint(node.inputs):
                    lowering.node(node)
                else:
                    sequences.update(node.outputs)
            if not self._sizes.solve():
                break
        if lowering.findings:
            raise Unsupported(lowering.findings)
        return lowering
