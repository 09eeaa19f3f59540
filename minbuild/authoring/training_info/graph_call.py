"""The operator GraphCall, which drafts of the training specification had: an algorithm runs the inference graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from minbuild.errors import Unsupported
from minbuild.frontend.onnx.subgraphs import renamed
from minbuild.frontend.onnx.training_info import GRAPH_CALL, TrainingEntry, TrainingModel
from minbuild.ir import Graph, Node


def without_graph_calls(entry: TrainingEntry, model: TrainingModel) -> Graph:
    """The entry's training step, the nodes of the inference graph in place of each GraphCall. Inputs and outputs are
    matched by `input_names` and `output_names` where the node has them (the earlier draft), else by position; what is
    left out and has an initializer is that. The inference graph's own nodes stay as far as the algorithm reads them.
    Raises Unsupported with everything that does not fit."""
    if not entry.calls_inference:
        return entry.step
    nodes: list[Node] = []
    findings: list[str] = []
    for node in entry.step.nodes:
        if node.op_type != GRAPH_CALL:
            nodes.append(node)
            continue
        call = _Call(node, model)
        where = f"{entry.step.source}: node '{node.name}' ({node.title}, opset {node.version})"
        problems = list(call.problems())
        findings += [f"{where}: {problem}." for problem in problems]
        if not problems:
            nodes += call.nodes()
    if findings:
        raise Unsupported(findings)
    return replace(entry.step, nodes=tuple(nodes), outputs=entry.outputs)


class _Call:
    """One application: which inputs of the inference graph get which values, which outputs go where."""

    def __init__(self, node: Node, model: TrainingModel) -> None:
        self.node, self.model = node, model
        self.given = _matched(node.attributes.get("input_names"), model.inputs, node.inputs)
        self.requested = _matched(node.attributes.get("output_names"), model.inference.outputs, node.outputs)

    def problems(self) -> Iterator[str]:
        called, stored = self.node.attributes.get("graph_name"), self.model.inference.initializers
        if called not in (None, self.model.name):
            yield f"graph_name is '{called}', but only the inference graph '{self.model.name}' can be called"
        listed = {*self.model.inputs, *stored}
        yield from (f"the inference graph has no input '{n}'" for n in self.given if n not in listed)
        yield from (
            f"the inference graph's input '{n}' is not given"
            for n in self.model.inference.inputs
            if not self.given.get(n)
        )
        outputs = self.model.inference.outputs
        yield from (f"the inference graph has no output '{n}'" for n in self.requested if n not in outputs)
        if len(self.node.inputs) > len(self.given) or len(self.node.outputs) > len(self.requested):
            yield "it has more inputs or outputs than the inference graph"

    def nodes(self) -> list[Node]:
        """The inference graph's nodes on the values given."""
        graph, prefix = self.model.inference, self.node.name
        made = {n for node in graph.nodes for n in node.outputs if n}
        names = {n: f"{prefix}/{n}" for n in made}
        names |= {n: value for n, value in self.given.items() if value}
        names |= {n: value for n, value in self.requested.items() if value and n in made}
        nodes = [renamed(node, lambda n: names.get(n, n), prefix) for node in graph.nodes]
        for name, value in self.requested.items():
            if value and name not in made:  # an input or initializer that is an output as well
                source = (names.get(name, name),)
                nodes.append(
                    Node(
                        "Identity",
                        "",
                        self.model.opset,
                        name=f"{prefix}/{name}",
                        inputs=source,
                        outputs=(value,),
                    )
                )
        return nodes


def _matched(names: Sequence[str] | None, listed: Sequence[str], values: Sequence[str]) -> Mapping[str, str]:
    return dict(zip(names or listed, values, strict=False))
