"""The applications of a graph in the order in which they run, as far apart as gradients need them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from minbuild.errors import Unsupported
from minbuild.frontend.onnx.function_inlining import function_nodes
from minbuild.frontend.onnx.unroll import unrolled
from minbuild.ir import Graph, Node, Role, TensorType, Value
from minbuild.ops import Registry
from minbuild.ops.core.definition import RULE_ERRORS, Op, OpContext, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder, named
from minbuild.passes.lowering.loop_call import LOOP
from minbuild.passes.lowering.program_builder import Lowering


@dataclass
class Application:
    """A node with what its rule may know."""

    node: Node
    op: Op
    ctx: OpContext


@dataclass
class Tape:
    """The applications of a graph in order, those that only stand for others taken apart as far as gradients need."""

    graph: Graph
    registry: Registry
    opset: int
    loops: bool = True  # Scans may stay loops
    findings: list[str] = field(default_factory=list)
    applications: list[Application] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lowering = Lowering(self.graph, self.registry, self.findings, loops=self.loops)

    def record(self, unknown: Iterable[str]) -> None:
        """Goes through the graph. Values in `unknown` are parameters: only their types are known."""
        lowering, unknown = self.lowering, frozenset(unknown)
        for name, tensor in self.graph.inputs.items():
            lowering.values[name] = Value(name, tensor, Role.INPUT)
        for name, array in self.graph.initializers.items():
            lowering.add_constant(name, np.asarray(array))
            if name in unknown:
                del lowering.known[name]
                lowering.values[name] = Value(name, lowering.values[name].type, Role.PARAMETER)
        for node in self.graph.nodes:
            self.node(node)
        if self.findings:
            raise Unsupported(self.findings)

    def node(self, node: Node) -> None:
        """Records a node, or the nodes it stands for where it has no gradient rule of its own."""
        lowering = self.lowering
        if any(name and name not in lowering.values for name in node.inputs):
            lowering.node(node)  # which says what is wrong
            return
        kept = lowering.loop(node)
        if kept is not None:
            loop = self.registry.ops[LOOP]
            self.applications.append(Application(kept, loop, lowering.ctx(kept)))
            return
        op = self.registry.find(node.domain, node.op_type)
        try:
            parts = self.parts(op, node)
            for part in parts or ():  # some are written when those before them are recorded
                self.node(part)
        except (UnsupportedUse, Unsupported, *RULE_ERRORS):
            parts = None  # lowering says why
        if parts is None:
            ctx = lowering.ctx(node)
            lowering.node(node)
            if op is not None:
                self.applications.append(Application(node, op, ctx))

    def parts(self, op: Op | None, node: Node) -> Iterable[Node] | None:
        """The nodes that `node` stands for."""
        lowering = self.lowering
        steps = lowering.kept_form(node) or unrolled(node, lowering)
        if steps is not None:
            return steps
        if op is None:
            return function_nodes(node, [lowering.values[n].type if n else None for n in node.inputs])
        # An operator with a gradient rule may still have to be taken apart, where its rule does not cover a use.
        rules = (op.decompose_for_grad,) if op.gradient is not None else (op.decompose, op.decompose_for_grad)
        for rule in rules:
            body = GraphBuilder(lowering.ctx(node), node.inputs, node.outputs, node.name, self.opset)
            results = body.write(rule) if rule is not None else None
            if results is not None:
                return named(body, results, node.outputs)
        return None

    def type_of(self, name: str) -> TensorType:
        return self.lowering.values[name].type
