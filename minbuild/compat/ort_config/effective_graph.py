"""A graph as ONNX Runtime sees it: every node it will run, with the element type and shape of every value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from minbuild.frontend.onnx.subgraphs import graphs_in, names_read
from minbuild.ir import Graph, Node, Shape, TensorType, TrainingArtifacts, Value
from minbuild.ops import Registry
from minbuild.ops.core.graph_builder import MICROSOFT
from minbuild.passes.lowering.program_builder import Lowering
from minbuild.passes.lowering.symbol_unification import SymbolUnification

_BODY_OPSET = 16  # of the nodes that ONNX Runtime writes in place of an operator


def _quotient_gradient(node: Node) -> Iterator[Node]:
    """d(a / b): dy / b for a, -dy * a / b^2 for b, each summed to the shape of what it is the gradient of."""
    dy, a, b = node.inputs
    counter = count()

    def made(op_type: str, *inputs: str, outputs: tuple[str, ...] = (), domain: str = "") -> Node:
        name = f"{node.name}/{next(counter)}"
        return Node(
            op_type,
            domain,
            1 if domain else _BODY_OPSET,
            name=name,
            inputs=inputs,
            outputs=outputs or (name,),
        )

    shapes = made("Shape", a), made("Shape", b)
    sums = tuple(f"{node.name}/sum of {i}" for i in range(2))
    names = tuple(each.outputs[0] for each in shapes)
    yield from (*shapes, made("BroadcastGradientArgs", *names, outputs=sums, domain=MICROSOFT))
    first = made("Div", dy, b)
    square, product = made("Mul", b, b), made("Mul", dy, a)
    ratio = made("Div", product.outputs[0], square.outputs[0])
    second = made("Neg", ratio.outputs[0])
    yield from (first, square, product, ratio, second)
    for part, axes, shape, result in zip((first, second), sums, names, (*node.outputs, "")[:2], strict=True):
        if result:
            total = made("ReduceSumTraining", part.outputs[0], axes, domain=MICROSOFT)
            yield from (total, made("Reshape", total.outputs[0], shape, outputs=(result,)))


# Operators without a kernel on ONNX Runtime's CPU: it replaces them by their definition when it loads a model.
FUNCTIONS: Mapping[str, Callable[[Node], Iterator[Node]]] = {"com.microsoft:DivGrad": _quotient_gradient}


@dataclass
class EffectiveGraph:
    """A graph while it is being rewritten. `constants` are values known before it runs, `outputs` what it returns,
    `types` of every value for which it is known."""

    source: str
    nodes: list[Node]
    types: Mapping[str, TensorType]
    contents: Mapping[str, np.ndarray]
    constants: set[str]
    outputs: frozenset[str]
    problems: tuple[str, ...] = ()

    @property
    def readers(self) -> Counter[str]:
        """The number of readers of each value; results count as read."""
        found = Counter(name for node in self.nodes for name in names_read(node) if name)
        found.update(self.outputs)
        return found

    def maker(self, name: str) -> Node | None:
        """The node that computes a value."""
        return next((node for node in self.nodes if name and name in node.outputs), None)

    def number(self, name: str) -> float | None:
        """The only element of a constant."""
        content = self.contents.get(name)
        if name not in self.constants or content is None or content.size != 1 or content.dtype == object:
            return None
        return float(content.reshape(-1)[0])

    def shape(self, name: str) -> Shape | None:
        """The dimensions of a value, where they are known."""
        return self.types[name].shape if name in self.types else None

    def rank(self, name: str) -> int | None:
        """The number of dimensions of a value, where it is known."""
        shape = self.shape(name)
        return None if shape is None else len(shape)

    def reader(self, name: str) -> Node | None:
        """The only node that reads a value, None where there are others or it is a result."""
        if self.readers[name] != 1 or name in self.outputs:
            return None
        return next((node for node in self.nodes if name in node.inputs), None)

    def replace(self, old: tuple[Node, ...], new: Node) -> None:
        """Put `new` in the place of the last of `old`."""
        position = max(self.nodes.index(node) for node in old)
        self.nodes[position] = new
        self.nodes = [node for node in self.nodes if not any(node is each for each in old)]

    def like(
        self,
        node: Node,
        op_type: str,
        inputs: tuple[str, ...],
        domain: str = "",
        *,
        version: int | None = None,
        outputs: tuple[str, ...] = (),
    ) -> Node:
        """A node of another operator with the results of `node`, of its opset where the domain is the same. `op_type`
        and `domain` name the operator, of `version` where that is not the model's; `inputs` and `outputs` are values
        by name, the outputs by default those of `node`."""
        opset = version or (node.version if domain == node.domain else 1)
        return Node(
            op_type, domain, opset, name=node.name, inputs=inputs, outputs=outputs or node.outputs[:1]
        )

    def retitle(self, name: str, to: str) -> None:
        """The value `name` is called `to`, where it is computed and where it is read."""
        self.nodes = [
            replace(n, outputs=tuple(to if o == name else o for o in n.outputs)) if name in n.outputs else n
            for n in self.nodes
        ]
        self.rename(name, to)

    def rename(self, name: str, to: str) -> None:
        """Everybody who reads `name` reads `to`."""
        self.nodes = [
            replace(n, inputs=tuple(to if i == name else i for i in n.inputs)) if name in n.inputs else n
            for n in self.nodes
        ]


@dataclass
class _Recorder(Lowering):
    """Lowers a graph for its types, and notes the nodes that ONNX Runtime has kernels for.

    A configuration may contain operators without kernels here. Their results get the type of their first input, as all
    training operators of ONNX Runtime have it, and an unknown shape."""

    recorded: list[Node] = field(default_factory=list)
    inside: bool = False  # of a node that was noted
    guessed: set[str] = field(default_factory=set)  # values of unknown shape
    inner: list[Graph] = field(default_factory=list)  # branches and loops that run as they are

    def node(self, node: Node, asked: str = "") -> None:
        outer = self.inside
        definition = FUNCTIONS.get(f"{node.domain}:{node.op_type}")
        if definition is not None:
            for part in definition(node):
                self.node(part, asked)
            return
        if not outer:
            self.recorded.append(node)
            # Nodes of branches and loops are kernels of their own, beside that of If or Loop.
            self.inside = not any(graphs_in(node))
        found = len(self.findings), len(self.sizes.pairs)
        blind = any(name in self.guessed for name in node.inputs)
        try:
            super().node(node, asked)
        except (IndexError, KeyError, RuntimeError, TypeError, ValueError):
            if not blind:  # rules for shapes may stumble only where a shape is not known
                raise
        self.inside = outer
        failed = any(name in self.broken for name in node.outputs)
        if len(self.sizes.pairs) == found[1] and (failed or blind):
            del self.findings[found[0] :]
            for graph in graphs_in(node):
                self.walk(graph)
            self.guess(node)

    def walk(self, graph: Graph) -> None:
        """Note the nodes of a branch or a loop."""
        self.inner.append(graph)
        for name, tensor in graph.inputs.items():
            self.values[name] = Value(name, TensorType(tensor.element, tensor.shape or ()))
            if tensor.shape is None:
                self.guessed.add(name)
        for name, array in graph.initializers.items():
            self.add_constant(name, np.asarray(array))
        for node in graph.nodes:
            self.node(node)

    def guess(self, node: Node) -> None:
        """Give the results of `node` types without shapes."""
        element = next((self.values[n].type.element for n in node.inputs if n in self.values), None)
        for name in filter(None, node.outputs):
            self.broken.discard(name)
            self.known.pop(name, None)
            self.guessed.add(name)
            known = self.values[name].type.element if name in self.values else element
            if known is not None:
                self.values[name] = Value(name, TensorType(known, ()))

    def types(self) -> dict[str, TensorType]:
        """Of every value that has one."""
        return {
            name: TensorType(value.type.element, None if name in self.guessed else value.type.shape)
            for name, value in self.values.items()
        }


def effective_graphs(artifacts: TrainingArtifacts, registry: Registry) -> tuple[EffectiveGraph, ...]:
    """All graphs of the artifacts; the optimizer's has no types, and needs none."""
    graphs = [
        _typed(g, artifacts, registry, SymbolUnification())
        for g in (artifacts.training, artifacts.evaluation)
        if g is not None
    ]
    if artifacts.optimizer is not None:
        graph = artifacts.optimizer
        results, constants = frozenset(graph.outputs), set(graph.initializers)
        graphs.append(
            EffectiveGraph(
                graph.source,
                nodes=list(graph.nodes),
                types={},
                contents={},
                constants=constants,
                outputs=results,
            )
        )
    return tuple(graphs)


def _typed(
    graph: Graph, artifacts: TrainingArtifacts, registry: Registry, sizes: SymbolUnification
) -> EffectiveGraph:
    recorder = _Recorder(graph, registry, [], sizes)
    saved = {p.name: TensorType(p.element, p.shape) for p in artifacts.checkpoint.parameters}
    for name, tensor in graph.inputs.items():
        known = saved.get(name, tensor).substituted(sizes.sizes)
        recorder.values[name] = Value(name, TensorType(known.element, known.shape or ()))
    for name, array in graph.initializers.items():
        recorder.add_constant(name, np.asarray(array))
    for node in graph.nodes:
        recorder.node(node)
    if sizes.solve():  # dimensions with different names turn out to be the same
        return _typed(graph, artifacts, registry, sizes)
    return EffectiveGraph(
        graph.source,
        nodes=recorder.recorded,
        types=recorder.types(),
        contents=recorder.known,
        constants={name for each in (graph, *recorder.inner) for name in each.initializers},
        outputs=frozenset(name for each in (graph, *recorder.inner) for name in each.outputs),
        problems=tuple(recorder.findings),
    )
