"""The graph of a model while parameters come back into it in place of constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.authoring.folded_constants.weight_norms import NormAxes, dims_note
from minbuild.authoring.recipe import Source
from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import Node
from minbuild.options.did_you_mean import listed


@dataclass
class UnfoldedGraph:
    """Nodes, arrays and scopes of `model`, which change, and what `result` makes of them."""

    model: Source
    made: list[str] = field(default_factory=list)  # parameters there are again
    lengths: list[tuple[str, NormAxes]] = field(default_factory=list)  # those whose scale is not in the file
    tables: list[str] = field(default_factory=list)  # those of whose rows the file has the ones that are read

    def __post_init__(self) -> None:
        graph, metadata = self.model.graph, self.model.metadata
        self.opset = self.model.opset
        self.nodes = list(graph.nodes)
        self.arrays = {n: np.asarray(a) for n, a in graph.initializers.items()}
        self.lost, self.folded = list(metadata.lost), dict(metadata.folded)
        self.start: list[Node] = []  # those that compute the constants
        self.scopes = dict(metadata.scopes)
        self.taken = {*graph.inputs, *(n for node in graph.nodes for n in node.outputs)}

    def result(self) -> tuple[Source, tuple[str, ...]]:
        """The model with the parameters that are there again, and a note on them."""
        if not self.made:
            return self.model, ()
        nodes = (*self.start, *self.nodes)
        read = {n for node in nodes for n in names_read(node)} | set(self.model.graph.outputs)
        arrays = {n: a for n, a in self.arrays.items() if n in read}
        metadata = replace(self.model.metadata, lost=tuple(self.lost), folded=self.folded)
        graph = replace(self.model.graph, nodes=nodes, initializers=arrays)
        made = listed(dict.fromkeys(self.made))
        note = f"{made}: folded into constants by the exporter; here they are tensors of their own again."
        if self.lengths:
            note += f" {dims_note(self.lengths)}"
        if self.tables:
            note += f" {listed(self.tables)}: the rows that the model reads, which train as in the module."
        return replace(self.model, graph=graph, metadata=metadata), (note,)

    def add(self, name: str, array: np.ndarray) -> None:
        """One more parameter, or statistic, of the module."""
        self.arrays[name] = array
        self.made.append(name)
        if name in self.lost:
            self.lost.remove(name)

    def scope(self, node: Node) -> str | None:
        """The submodule of a node, where the exporter's metadata name it."""
        return self.scopes.get(node.outputs[0]) if node.outputs else None

    def node(self, op_type: str, inputs: Sequence[str], output: str, **attributes: object) -> Node:
        """A node of the default domain: `op_type` of `inputs` makes `output`."""
        return Node(
            op_type,
            "",
            self.opset,
            name=f"{output}/{op_type}",
            inputs=tuple(inputs),
            outputs=(output,),
            attributes=attributes,
        )
