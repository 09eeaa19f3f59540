"""Bundle -> Program: every node becomes a call of a known operator, every value gets a type and a symbolic shape, and
what can be computed now is computed now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.artifacts.control_flow import unrolled
from minbuild.artifacts.functions import function_nodes
from minbuild.dims import Dim, product, substitute, symbol, symbols_in
from minbuild.errors import Unsupported
from minbuild.model import (
    Bundle,
    Call,
    Checkpoint,
    ElementType,
    Graph,
    Node,
    Procedure,
    Program,
    Role,
    Shape,
    TensorType,
    Value,
)
from minbuild.ops import Registry
from minbuild.ops.body import Body, named
from minbuild.ops.definition import Mismatch, Op, Site, Unknown
from minbuild.passes.equal_sizes import equal_sizes, solved

GRADIENT_SUFFIX = "_grad.accumulation.buffer"
RESET_INPUT = "lazy_reset_grad"
ELSEWHERE = 0xFFFF  # index of a parameter that the training graph does not take
_SEQUENCES = ("params", "gradients", "first_order_moments", "second_order_moments")


def lower(bundle: Bundle, registry: Registry, fixed: Mapping[str, Dim]) -> Program:
    """The bundle's graphs over known operators. `fixed` gives free dimensions a size.

    Raises Unsupported with every node that has no operator, type or known shape.
    """
    findings: list[str] = []
    differing: list[tuple[Dim, Dim]] = []
    parameters = _parameters(bundle.checkpoint, bundle.training)
    procedures = [_lower(bundle.training, "train", parameters, registry, fixed, findings, differing)]
    if bundle.evaluation is not None:
        procedures.append(_lower(bundle.evaluation, "eval", parameters, registry, fixed, findings, differing))
    equal = solved(differing)
    if not findings:
        equal = {name: size for p in reversed(procedures) for name, size in equal_sizes(p).items()}
    if equal:
        return lower(bundle, registry, {**{n: substitute(d, equal) for n, d in fixed.items()}, **equal})
    moments = 0
    if bundle.optimizer is not None:
        moments = sum(name in bundle.optimizer.sequences for name in _SEQUENCES[2:])
        procedures.append(_lower_optimizer(bundle.optimizer, parameters, registry, findings))
    if bundle.initialization is not None:
        graph = bundle.initialization
        procedures.append(_lower(graph, "initialize", parameters, registry, fixed, findings, differing))
    if findings:
        raise Unsupported(findings)
    return Program(
        tuple(procedures),
        _with_state_roles(parameters, procedures),
        moments,
        _symbols(procedures),
    )


def _parameters(checkpoint: Checkpoint, training: Graph) -> dict[str, Value]:
    """Every checkpoint tensor, trained ones first. The `index` of one is its place among the training graph's inputs
    that are parameters, ELSEWHERE if it is none of them. What a nominal checkpoint names has no bytes to be read from:
    those of a frozen parameter persist like state."""
    ordered = sorted(checkpoint.parameters, key=lambda p: not p.trainable)
    names = {p.name for p in ordered}
    order = {name: i for i, name in enumerate(n for n in training.inputs if n in names)}
    roles = {True: Role.PARAMETER, False: Role.STATE if checkpoint.nominal else Role.FROZEN}
    return {
        p.name: Value(
            p.name, TensorType(p.element, p.shape), roles[p.trainable], index=order.get(p.name, ELSEWHERE)
        )
        for p in ordered
    }


def _with_state_roles(parameters: Mapping[str, Value], procedures: list[Procedure]) -> tuple[Value, ...]:
    """Frozen parameters that some call writes are STATE. Training-graph order within each role."""
    written = {v.name for p in procedures for v in p.values.values() if v.role is Role.STATE}
    used = {v.name for p in procedures for v in p.values.values()}
    values = [replace(v, role=Role.STATE) if v.name in written else v for v in parameters.values()]
    kept = [v for v in values if v.role is Role.PARAMETER or v.name in used]
    order = {Role.PARAMETER: 0, Role.STATE: 1, Role.FROZEN: 2}
    return tuple(sorted(kept, key=lambda v: order[v.role]))


def _symbols(procedures: list[Procedure]) -> tuple[str, ...]:
    """Free dimensions of all user inputs, in order of first appearance."""
    found: dict[str, None] = {}
    for procedure in procedures:
        for name in procedure.inputs:
            for dim in procedure.values[name].type.shape or ():
                found.update(dict.fromkeys(sorted(symbols_in(dim))))
    return tuple(found)


@dataclass
class Lowering:
    """One graph being lowered, node by node: what is known so far, and what came out.

    `findings` grows by one text for every node that has no operator, type or known shape."""

    graph: Graph
    registry: Registry
    findings: list[str]
    differing: list[tuple[Dim, Dim]] = field(default_factory=list)  # sizes that should be equal
    values: dict[str, Value] = field(default_factory=dict)
    known: dict[str, np.ndarray] = field(default_factory=dict)
    made: dict[str, Site] = field(default_factory=dict)  # value -> the application that made it
    calls: list[Call] = field(default_factory=list)
    alias: dict[str, str] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)  # outputs of nodes already reported

    def add_constant(self, name: str, array: np.ndarray) -> None:
        """A value known now: numbers, or dimensions in an object array."""
        element = ElementType.INT64 if array.dtype == object else _element(array)
        self.known[name] = array
        role = Role.TEMPORARY if array.dtype == object else Role.CONSTANT
        self.values[name] = Value(name, TensorType(element, array.shape), role, array)

    def node(self, node: Node, asked: str = "") -> None:
        """Adds the calls for `node`, which stands for the node of the graph called `asked` or a part of it."""
        asked = asked or node.name
        if any(name in self.broken for name in node.inputs):
            self.broken.update(node.outputs)
            return
        op = self.registry.find(node.domain, node.op_type)
        problem = None
        try:
            parts = self.parts(op, node)
            if parts is not None:
                for part in parts:  # some are written when those before them are known
                    self.node(part, asked)
            elif op is not None:
                self.apply(op, node, asked)
            else:
                problem = "no such operator here. Leave it out of the model, or define it with --ops-dir"
        except Unknown as error:
            problem = str(error)
            if isinstance(error, Mismatch):
                self.differing.append(error.sizes)
        except Unsupported as error:
            problem = f"it stands for nodes that are not supported: {error}"
        if problem is not None:
            self.broken.update(node.outputs)
            self.findings.append(
                f"{self.graph.source}: node '{node.name}' ({node.title}, opset {node.version}): {problem}."
            )

    def content(self, name: str) -> np.ndarray | None:
        """What a value holds, where that is known."""
        return self.known.get(name)

    def shape(self, name: str) -> Shape:
        """The dimensions of a value."""
        if name not in self.values:
            raise Unknown(f"its input '{name}' is produced by no earlier node")
        return self.values[name].type.shape or ()

    def parts(self, op: Op | None, node: Node) -> Iterable[Node] | None:
        """The nodes that `node` is made of, where it has no kernel of its own."""
        missing = [name for name in node.inputs if name and name not in self.values]
        if missing:
            raise Unknown(f"its input '{missing[0]}' is produced by no earlier node")
        steps = unrolled(node, self)
        if steps is not None:
            return steps
        if op is None:
            return function_nodes(node, [self.values[n].type if n else None for n in node.inputs])
        if op.body is None:
            return None
        body = Body(self.site(node), node.inputs, node.outputs, node.name)
        results = op.body(body)
        return None if results is None else named(body, results, node.outputs)

    def apply(self, op: Op, node: Node, asked: str) -> None:
        node = self.with_draws(op, node)
        site = self.site(node)
        if op.infer is None:
            raise Unknown("this operator is not defined for such inputs")
        types = op.infer(site)
        contents = self.contents(op, site, len(types))
        computed = []
        for name, tensor, content in zip(node.outputs, types, contents, strict=False):
            if name and content is not None:
                self.add_constant(name, _typed(content, tensor))
            elif name:
                self.values[name], self.made[name] = Value(name, tensor), site
            computed.append(name if content is None else "")
        if any(content is None for content in contents):
            self.note_updates(op, node)
            names = node.inputs, tuple(computed)
            self.calls.append(Call(op.key, node.version, asked, *names, dict(node.attributes)))

    def with_draws(self, op: Op, node: Node) -> Node:
        """The node with the count of random draws that its engine starts from: its own where it has a seed."""
        if op.generator is None or len(node.inputs) > op.generator:
            return node
        of = f"{self.graph.source}:{node.outputs[0]}" if "seed" in node.attributes else ""
        name = f"draws of {of or 'the session'}"
        self.values[name] = Value(name, TensorType(ElementType.INT64, (1,)), Role.DRAWS, of=of)
        absent = ("",) * (op.generator - len(node.inputs))
        return replace(node, inputs=(*node.inputs, *absent, name))

    def site(self, node: Node) -> Site:
        types = tuple(self.values[n].type if n else None for n in node.inputs)
        known = tuple(self.known.get(n) for n in node.inputs)
        makers = tuple(self.made.get(n) for n in node.inputs)
        return Site(
            node.attributes,
            types,
            known,
            node.version,
            node.inputs,
            result_names=node.outputs,
            makers=makers,
            earlier=self.made,
            op=f"{node.domain}:{node.op_type}",
        )

    def contents(self, op: Op, site: Site, count: int) -> tuple[np.ndarray | None, ...]:
        """The contents of each of `count` outputs where they can be told now, else None."""
        told = tuple(op.known(site)) if op.known else (None,) * count
        if not any(content is None for content in told):
            return told
        given = [k for k, t in zip(site.known, site.inputs, strict=True) if t is not None]
        if op.reference is None or not given or any(k is None for k in given):
            return told
        try:
            result = op.reference(site.attributes, *site.known)
        except (
            TypeError,
            ValueError,
            IndexError,
        ):  # not defined for dimensions: the device would have to know
            return told
        return tuple(np.asarray(r) for r in (result if isinstance(result, tuple) else (result,)))

    def note_updates(self, op: Op, node: Node) -> None:
        """Checkpoint values that a call changes become state, and the output that is the new value shares their
        bytes. Constants of the graph are never changed: the kernel leaves such an output out."""
        for source, output in op.updates.items():
            value = self.values[node.inputs[source]]
            if value.role is Role.CONSTANT:
                continue
            if value.role is Role.FROZEN:
                self.values[value.name] = replace(value, role=Role.STATE)
            if output is not None and output < len(node.outputs) and node.outputs[output]:
                self.alias[node.outputs[output]] = value.name


def _element(array: np.ndarray) -> ElementType:
    element = ElementType.of(array.dtype)
    if element is None:
        raise Unknown(f"constants of type {array.dtype} are not supported")
    return element


def _typed(content: np.ndarray, tensor: TensorType) -> np.ndarray:
    """Folded contents in the operator's result type; dimensions that are all numbers become numbers."""
    if content.dtype == object and not all(
        isinstance(d, (int, np.integer)) for d in content.ravel().tolist()
    ):
        return content
    return np.ascontiguousarray(content).astype(tensor.element.dtype).reshape(content.shape)


def _lower(
    graph: Graph,
    name: str,
    parameters: Mapping[str, Value],
    registry: Registry,
    fixed: Mapping[str, Dim],
    findings: list[str],
    differing: list[tuple[Dim, Dim]],
) -> Procedure:
    lowering = Lowering(graph, registry, findings, differing)
    inputs: list[str] = []
    given = {d for tensor in graph.inputs.values() for d in tensor.shape or ()}
    told = {name for d in given for name in symbols_in(d) if d == symbol(name) and name not in fixed}
    for input_name, tensor in graph.inputs.items():
        if input_name == RESET_INPUT:
            continue
        if input_name in parameters:
            lowering.values[input_name] = parameters[input_name]
        elif input_name.endswith(GRADIENT_SUFFIX):
            of = input_name[: -len(GRADIENT_SUFFIX)]
            lowering.values[input_name] = Value(input_name, parameters[of].type, Role.GRADIENT, of=of)
        else:
            shape = tuple(substitute(d, fixed) for d in tensor.shape or ())
            findings.extend(_unreadable(graph.source, input_name, shape, told))
            tensor = TensorType(tensor.element, shape)
            lowering.values[input_name] = Value(input_name, tensor, Role.INPUT, index=len(inputs))
            inputs.append(input_name)
    lowering.values[RESET_INPUT] = Value(RESET_INPUT, TensorType(ElementType.BOOL, (1,)))
    for constant_name, array in graph.initializers.items():
        lowering.add_constant(constant_name, np.asarray(array))
    for node in graph.nodes:
        lowering.node(node)
    flags = {call.outputs[0] for call in lowering.calls if call.op == "com.microsoft:InPlaceAccumulatorV2"}
    outputs = tuple(o for o in graph.outputs if o not in flags)
    calls = tuple(lowering.calls)
    return Procedure(name, graph.source, calls, lowering.values, tuple(inputs), outputs, lowering.alias)


def _unreadable(source: str, name: str, shape: Sequence[Dim], told: Set[str]) -> Iterator[str]:
    """Findings about dimensions that depend on free ones that no input has by themselves: those in `told`."""
    for axis, dim in enumerate(shape):
        if not symbols_in(dim) <= told:
            yield (
                f"{source}: input '{name}': dimension {axis} is {dim}. Only a number or the name of one free "
                "dimension can be an input's size. Give it a name of its own."
            )


def _lower_optimizer(
    graph: Graph, parameters: Mapping[str, Value], registry: Registry, findings: list[str]
) -> Procedure:
    """The optimizer works on all trained parameters as one flat tensor, and so on their gradients and moments."""
    trained = [v for v in parameters.values() if v.role is Role.PARAMETER]
    elements = {v.type.element for v in trained} or {ElementType.FLOAT}
    if len(elements) > 1:
        findings.append(
            f"{graph.source}: trained parameters of several types ({', '.join(sorted(e.label for e in elements))}) "
            "cannot share one optimizer. Convert them to one type."
        )
    element = next(iter(elements))
    # Whole vectors of 32 bytes, for which the region has room: optimizers need no loop over a rest.
    count, lanes = sum((product(v.type.shape or ()) for v in trained), 0), 32 // element.size
    assert isinstance(count, int), "a parameter's shape is known"
    flat = TensorType(element, (-(-count // lanes) * lanes,))
    lowering = Lowering(graph, registry, findings)
    roles = (Role.PARAMETER, Role.GRADIENT, Role.MOMENT, Role.MOMENT)
    for i, (name, role) in enumerate(zip(_SEQUENCES, roles, strict=True)):
        if name in graph.sequences:
            lowering.values[name] = Value(name, flat, role, index=max(0, i - 2))
    scalars = {"learning_rate": ElementType.FLOAT, "step": ElementType.INT64}
    for i, (name, element) in enumerate(scalars.items()):
        if name in graph.inputs:
            lowering.values[name] = Value(name, TensorType(element, (1,)), Role.SCALAR, index=i)
    for name, array in graph.initializers.items():
        lowering.add_constant(name, np.asarray(array))
    for node in graph.nodes:
        lowering.node(node)
    return Procedure("optimize", graph.source, tuple(lowering.calls), lowering.values, (), (), lowering.alias)
