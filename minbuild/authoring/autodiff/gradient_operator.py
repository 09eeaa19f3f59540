"""The operator Gradient of `ai.onnx.preview.training`: the nodes it stands for.

Its attributes name a part of the graph it stands in: `y` as a function of `xs` and `zs`. Where the node's inputs are
these very values, what is there of the forward pass is used; where they are others, the part runs once more on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.authoring.autodiff.backward import differentiate
from minbuild.authoring.autodiff.sweep import Differentiated
from minbuild.authoring.autodiff.topological_order import in_order
from minbuild.errors import Unsupported
from minbuild.frontend.onnx.subgraphs import names_read, renamed
from minbuild.frontend.onnx.training_info import DOMAIN
from minbuild.ir import Graph, Node, Role, Value
from minbuild.ir.dims import Dim
from minbuild.ops import Registry
from minbuild.ops.core.graph_builder import LARGEST_OPSET
from minbuild.passes.lowering.program_builder import Lowering

GRADIENT = "Gradient"


def is_gradient(node: Node) -> bool:
    """True if a node is the specification's Gradient."""
    return (node.domain, node.op_type) == (DOMAIN, GRADIENT)


def names_in_gradients(nodes: Iterable[Node]) -> set[str]:
    """The values that Gradient nodes among `nodes` name in their attributes."""
    found: set[str] = set()
    for attributes in (node.attributes for node in nodes if is_gradient(node)):
        found |= {*(attributes.get("xs") or ()), *(attributes.get("zs") or ()), attributes.get("y") or ""}
    return found - {""}


def opset_of_nodes(graph: Graph) -> int:
    """The version of ONNX's own operators that the nodes of a graph are of."""
    return max((node.version for node in graph.nodes if not node.domain), default=LARGEST_OPSET)


def without_gradient_nodes(graph: Graph, variables: Iterable[str], registry: Registry, opset: int) -> Graph:
    """The graph with plain nodes in place of its Gradient nodes. `variables` are the initializers that change: what
    they hold is not known. A Gradient of a Gradient's result is a derivative of higher order. `graph` is in version
    `opset` of ONNX's own operators; `registry` has the gradient rules. Raises Unsupported with every broken rule and
    every node that no gradient leads through."""
    if not any(is_gradient(node) for node in graph.nodes):
        return graph
    expansion = _Expansion(graph, frozenset(variables), registry, opset)
    expansion.run()
    sizes = expansion.lowering.sizes
    if sizes.solve():  # free dimensions that must be a number, or under two names that must be one
        inputs = {n: t.substituted(sizes.sizes) for n, t in graph.inputs.items()}
        return without_gradient_nodes(replace(graph, inputs=inputs), variables, registry, opset)
    if expansion.findings:
        raise Unsupported(expansion.findings)
    constants = {**graph.initializers, **expansion.seeds}
    return replace(graph, nodes=tuple(expansion.nodes), initializers=constants)


@dataclass(frozen=True)
class _Request:
    """One Gradient node: of `y` by each of `xs`, as a function of `xs` and `zs`."""

    node: Node
    xs: tuple[str, ...]
    zs: tuple[str, ...]
    y: str

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.xs, *self.zs)

    @property
    def in_place(self) -> bool:
        """True if the node's inputs are the values it names."""
        return self.node.inputs == self.names


@dataclass
class _Expansion:
    """A graph gone through from front to back, the nodes so far without Gradient and all types known."""

    graph: Graph
    variables: frozenset[str]
    registry: Registry
    opset: int
    findings: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    seeds: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lowering = Lowering(self.graph, self.registry, self.findings)
        for name, tensor in self.graph.inputs.items():
            self.lowering.values[name] = Value(name, tensor, Role.INPUT)
        for name, array in self.graph.initializers.items():
            self.lowering.add_constant(name, np.asarray(array))
            if name in self.variables:
                del self.lowering.known[name]
                self.lowering.values[name] = Value(name, self.lowering.values[name].type, Role.BUFFER)

    def run(self) -> None:
        for node in self.graph.nodes:
            if is_gradient(node):
                self.gradient(node)
            else:
                self.nodes.append(node)
                self.lowering.node(node)

    def gradient(self, node: Node) -> None:
        """Writes the nodes of one Gradient; what is wrong with it goes to the findings."""
        get = node.attributes.get
        request = _Request(node, tuple(get("xs") or ()), tuple(get("zs") or ()), get("y") or "")
        if not self.lowering.broken.isdisjoint((*request.names, request.y, *node.inputs)):
            self.lowering.broken.update(node.outputs)  # what is wrong is reported already
            return
        problems = list(self.unnamed(request))
        part = _Part.behind(request.y, request.names, self) if not problems else None
        if part is not None:
            problems += self.broken_rules(request, part)
        if part is not None and not problems:
            problems += self.write(request, part)
        where = f"{self.graph.source}: node '{node.name}' ({node.title}, opset {node.version})"
        self.findings += [f"{where}: {problem}." for problem in problems]
        if problems:  # what reads its results has nothing wrong of its own
            self.lowering.broken.update(node.outputs)

    # ------------------------------------------------------------------------------------------------ rules

    def unnamed(self, request: _Request) -> Iterator[str]:
        """Values whose makers are unknown: names that are not there, numbers that do not fit."""
        known, node = self.lowering.values, request.node
        for attribute, names in (("xs", request.xs), ("zs", request.zs), ("y", (request.y,))):
            for name in names:
                if name not in known:
                    yield f"{attribute}: '{name}' is no value of the graph before this node"
        if not request.xs:
            yield "xs is empty; name the values to differentiate by"
        if len(set(request.names)) < len(request.names):
            yield "a name stands twice in xs and zs"
        if len(node.inputs) != len(request.names):
            yield f"xs and zs name {len(request.names)} values, but it has {len(node.inputs)} inputs"
        if len(node.outputs) > len(request.xs):
            yield f"it has {len(node.outputs)} outputs, but xs names {len(request.xs)} values"
        yield from (
            f"its input '{n}' is no value of the graph before it" for n in node.inputs if n not in known
        )

    def broken_rules(self, request: _Request, part: _Part) -> Iterator[str]:
        """The specification's rules: xs and zs determine y, and none of them another."""
        types = {n: self.lowering.values[n].type for n in (*request.xs, request.y)}
        shape = types[request.y].shape or ()
        if not types[request.y].element.is_real or any(d != 1 for d in shape):
            yield (
                f"y: '{request.y}' is {types[request.y].element.label}{_text(shape)}; it must be a single real "
                "number. Take its mean or sum"
            )
        for x in request.xs:
            if not types[x].element.is_real:
                yield f"xs: '{x}' is {types[x].element.label}; only real numbers can be differentiated by"
            elif x not in part.read:
                yield f"xs: '{request.y}' does not depend on '{x}'"
        for leaf in sorted(part.leaves - set(request.names)):
            yield f"'{request.y}' depends on '{leaf}' too, which stands in neither xs nor zs. Add it to zs"
        for name in request.names:
            others = [n for n in request.names if n != name]
            made_of = _Part.behind(name, others, self)
            sources = made_of.leaves | (made_of.read & set(others))
            if made_of.nodes and sources and sources <= set(others):
                yield (
                    f"'{name}' is computed from {_list(sources)}, which are in xs or zs as well; only what is "
                    "independent may stand there. Leave it out"
                )

    # ---------------------------------------------------------------------------------------------- writing

    def write(self, request: _Request, part: _Part) -> list[str]:
        """Puts forward and backward nodes in place. Returns the faults found."""
        if not request.in_place:
            part, request = self.copied(part, request)
        try:
            made = differentiate(self.sliced(part, request), request.y, request.xs, self.registry, self.opset)
        except Unsupported as error:
            self.findings += error.findings
            self.lowering.broken.update(request.node.outputs)
            return []
        lost = [x for x in request.xs if x not in made.gradients]
        if lost:
            return [f"xs: no gradient flows from '{request.y}' to '{x}'" for x in lost]
        replaced = set(part.nodes)
        forward = made.nodes[: made.turn]
        self.nodes = [n for i, n in enumerate(self.nodes) if i not in replaced]
        backward = self.backward(made, request)
        at = min(part.nodes, default=len(self.nodes))
        self.nodes = in_order([*self.nodes[:at], *forward, *self.nodes[at:], *backward])
        for node in (*forward, *backward):
            self.lowering.node(node)
        return []

    def copied(self, part: _Part, request: _Request) -> tuple[_Part, _Request]:
        """The part once more, computed from the node's inputs."""
        prefix = request.node.name
        own = {n for i in part.nodes for n in self.nodes[i].outputs} | set(request.names)

        def rename(name: str) -> str:
            return f"{prefix}/{name}" if name in own else name

        copies = [
            Node(
                "Identity", "", self.opset, name=f"{prefix}/{name}", inputs=(given,), outputs=(rename(name),)
            )
            for name, given in zip(request.names, request.node.inputs, strict=True)
        ]
        first = len(self.nodes) + len(copies)
        copies += [renamed(self.nodes[i], rename, prefix) for i in part.nodes]
        self.nodes += copies
        for node in copies:
            self.lowering.node(node)
        nodes = tuple(range(first, len(self.nodes)))
        new = replace(
            request,
            xs=tuple(map(rename, request.xs)),
            zs=tuple(map(rename, request.zs)),
            y=rename(request.y),
        )
        return _Part(nodes, frozenset(map(rename, part.read)), part.leaves), new

    def sliced(self, part: _Part, request: _Request) -> Graph:
        """The part as a graph by itself, fed with xs and zs; what is known stays known, except xs."""
        values, known = self.lowering.values, self.lowering.known
        fixed = {n: known[n] for n in sorted(part.read) if n in known and n not in request.xs}
        inputs = {n: values[n].type for n in request.names if n not in fixed}
        nodes = tuple(self.nodes[i] for i in part.nodes)
        return Graph(
            self.graph.source,
            nodes=nodes,
            inputs=inputs,
            sequences={},
            outputs=(request.y,),
            initializers=fixed,
        )

    def backward(self, made: Differentiated, request: _Request) -> list[Node]:
        """The backward nodes, named after the Gradient node, its outputs as the file names them."""
        node = request.node
        nodes = made.nodes[made.turn :]
        names = {n: f"{node.name}/{n}" for b in nodes for n in b.outputs if n}
        names |= {n: f"{node.name}/{n}" for n in made.initializers}
        for x, output in zip(request.xs, node.outputs, strict=False):
            if output:
                names[made.gradients[x]] = output
        self.seeds |= {names[n]: array for n, array in made.initializers.items()}
        for name, array in made.initializers.items():
            self.lowering.add_constant(names[name], array)
        return [renamed(b, lambda n: names.get(n, n), node.name) for b in nodes]


@dataclass(frozen=True)
class _Part:
    """The nodes that lead to a value: positions of nodes in order, every value they read or are asked for, and among
    those the inputs and variables where the way back ends."""

    nodes: tuple[int, ...]
    read: frozenset[str]
    leaves: frozenset[str]

    @classmethod
    def behind(cls, name: str, ends: Iterable[str], expansion: _Expansion) -> _Part:
        """From `name` back to `ends`, to inputs and variables, and to what is known."""
        makers = {o: i for i, node in enumerate(expansion.nodes) for o in node.outputs if o}
        stops, known = frozenset(ends), expansion.lowering.known
        pending, read, nodes, leaves = [name], set[str](), set[int](), set[str]()
        while pending:
            value = pending.pop()
            if value in read:
                continue
            read.add(value)
            if value in stops or value in known:
                continue
            if value not in makers:
                leaves.add(value)
            elif makers[value] not in nodes:
                nodes.add(makers[value])
                pending += names_read(expansion.nodes[makers[value]])
        return cls(tuple(sorted(nodes)), frozenset(read), frozenset(leaves))


def _text(shape: tuple[Dim, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"'{n}'" for n in sorted(names))
