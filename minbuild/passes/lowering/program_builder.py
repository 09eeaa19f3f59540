"""One graph becoming calls of known operators, node by node: what has parts is taken apart, every value gets a type and
a symbolic shape, and what can be computed now is computed now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from minbuild.errors import Unsupported
from minbuild.frontend.onnx.function_inlining import function_nodes, is_function
from minbuild.frontend.onnx.guards import guard_of
from minbuild.frontend.onnx.loops import kept_loop, rounds_of, unchanged_states
from minbuild.frontend.onnx.scan_form import scan_form
from minbuild.frontend.onnx.unroll import is_unrolled, unrolled
from minbuild.ir import Call, ElementType, Graph, Node, Role, Shape, TensorType, Value
from minbuild.ir.dims import Dim, symbols_in
from minbuild.ops import Registry
from minbuild.ops.core.definition import RULE_ERRORS, Op, OpContext, ShapeMismatch, UnsupportedUse, malformed
from minbuild.ops.core.graph_builder import GraphBuilder, named
from minbuild.ops.core.kernel import FLOATS
from minbuild.passes.lowering.loop_call import body_graph, loop_call
from minbuild.passes.lowering.missing_operators import no_operator
from minbuild.passes.lowering.symbol_unification import SymbolUnification

MOST_FOLDED = 1 << 24  # elements of a constant that is computed from smaller ones
MOST_REPEATED = 16  # elements of a constant that is one number, expanded
_EXPAND = ":Expand"
_VIEWED = 1 << 20  # bytes of a constant that is not copied into C order


_NEEDS_SIZE = re.compile(
    "must be known|to be known|known sizes|that are known|must be a number|cannot tell|size is free|a size$|floor"
)


class _FollowsFromReported(UnsupportedUse):
    """A part of a node needs a value that was not made, for a reason reported already."""


@dataclass
class Lowering:
    """One graph being lowered, node by node: what is known so far, and what came out.

    `findings` grows by one text for every node that has no operator, type or known shape."""

    graph: Graph
    registry: Registry
    findings: list[str]
    sizes: SymbolUnification = field(default_factory=SymbolUnification)
    values: dict[str, Value] = field(default_factory=dict)
    known: dict[str, np.ndarray] = field(default_factory=dict)
    made: dict[str, OpContext] = field(default_factory=dict)  # value -> the application that made it
    calls: list[Call] = field(default_factory=list)
    alias: dict[str, str] = field(default_factory=dict)
    equal_types: dict[TensorType, TensorType] = field(default_factory=dict)  # equal ones as one
    broken: set[str] = field(default_factory=set)  # outputs of nodes already reported
    loops: bool = True  # Scans may stay loops

    def attempt(self) -> Lowering:
        """A copy that adds what follows, and its findings, to itself alone."""
        return replace(
            self,
            findings=[],
            calls=[],
            broken=set(self.broken),
            values=dict(self.values),
            known=dict(self.known),
            made=dict(self.made),
            alias=dict(self.alias),
        )

    def add_constant(self, name: str, array: np.ndarray) -> None:
        """A value known now: numbers, or dimensions in an object array."""
        element = ElementType.INT64 if array.dtype == object else _element(array)
        self.known[name] = array
        role = Role.TEMPORARY if array.dtype == object else Role.CONSTANT
        self.values[name] = Value(name, TensorType(element, array.shape), role, array)

    def node(self, node: Node, origin: str = "") -> None:
        """Adds the calls for `node`, which is the node of the graph called `origin` or a part of it."""
        origin = origin or node.name
        op = self.registry.find(node.domain, node.op_type)
        if self.broken and any(name in self.broken for name in node.inputs if name):
            self.broken.update(node.outputs)
            if op is None and not is_unrolled(node) and not is_function(node):  # whatever its inputs may be
                self.report(node, no_operator(node))
            return
        problem, sizes, count = None, tuple[Dim, ...](), len(self.findings)
        try:
            parts = self.parts(op, node)
            if parts is not None:
                for part in parts:  # some are written when those before them are known
                    self.node(part, origin)
            elif op is not None:
                self.apply(op, node, origin)
            else:
                problem = no_operator(node)
        except _FollowsFromReported:
            self.broken.update(node.outputs)
        except UnsupportedUse as error:
            problem = str(error)
            if isinstance(error, ShapeMismatch):
                problem, sizes = problem + self.sizes.explanation(error.sizes), error.sizes
                self.sizes.add(*error.sizes, f"node '{node.name}' ({node.title})")
        except Unsupported as error:
            problem = f"it stands for nodes that are not supported: {error}"
        except RULE_ERRORS as error:
            problem = str(malformed(error))
        if problem is not None:
            self.broken.update(node.outputs)
            self.report(node, problem, sizes)
        self.explain_branches(node, count)

    def explain_branches(self, node: Node, count: int) -> None:
        """Adds to the findings from `count` on how to choose a branch of `node`, where it is an If on data."""
        if node.op_type != "If" or node.domain or len(self.findings) == count:
            return
        whole = [
            n
            for n, t in self.graph.inputs.items()
            if not t.element.is_real and t.shape is not None and all(d == 1 for d in t.shape)
        ]
        if (
            self.content(node.inputs[0]) is None
            and whole
            and f"--dim {whole[0]}=" not in self.findings[count]
        ):
            self.findings[count] += (
                f" Both branches of If '{node.name}' are built, as its condition depends on data. Where an input "
                f"chooses the branch, fix that: --dim {whole[0]}=... (inputs of one whole number: {', '.join(whole)})."
            )

    def report(self, node: Node, problem: str, sizes: Iterable[Dim] = ()) -> None:
        """One more finding, a `problem` with `node`, and the option that cures it where a size that is free stands in
        the way: one of `sizes`, which do not fit each other, or of any input."""
        sizes = sizes or [d for n in node.inputs if n in self.values for d in self.shape(n)]
        free = sorted({s for d in sizes for s in symbols_in(d)})
        if free and _NEEDS_SIZE.search(problem) and "--dim" not in problem:
            problem += f". Give a size to {' or '.join(free)}, such as --dim {free[0]}=16"
        where = f"node '{node.name}' ({node.title}, opset {node.version})"
        self.findings.append(f"{self.graph.source}: {where}: {problem}.")

    def content(self, name: str) -> np.ndarray | None:
        """The content of a value, where it is known."""
        return self.known.get(name)

    def shape(self, name: str) -> Shape:
        """The dimensions of a value."""
        return self.type_of(name).shape or ()

    def element(self, name: str) -> ElementType:
        """The element type of a value."""
        return self.type_of(name).element

    def type_of(self, name: str) -> TensorType:
        """The type of a value. Raises UnsupportedUse where there is no such value."""
        if name in self.broken:
            raise _FollowsFromReported(f"'{name}' was not made")
        if name not in self.values:
            raise UnsupportedUse(f"its input '{name}' is produced by no earlier node")
        return self.values[name].type

    def parts(self, op: Op | None, node: Node) -> Iterable[Node] | None:
        """The nodes that `node` is made of, where it has no kernel of its own."""
        missing = [name for name in node.inputs if name and name not in self.values]
        if missing:
            raise UnsupportedUse(f"its input '{missing[0]}' is produced by no earlier node")
        if self.loop(node) is not None:
            return ()
        steps = self.kept_form(node) or unrolled(node, self)
        if steps is not None:
            return steps
        if op is None:
            return function_nodes(node, [self.values[n].type if n else None for n in node.inputs])
        if op.decompose is None:
            return None
        body = GraphBuilder(self.ctx(node), node.inputs, node.outputs, node.name)
        results = body.write(op.decompose)
        nodes = None if results is None else named(body, results, node.outputs)
        body.release()
        return nodes

    def kept_form(self, node: Node) -> Iterator[Node] | None:
        """The nodes that run in place of a Loop, or of a Scan along other axes, where the Scan among them stays a
        loop."""
        if not self.loops or node.op_type not in ("Loop", "Scan"):
            return None
        attempt = self.attempt()
        try:
            nodes = scan_form(node, attempt)
            if nodes is None:
                return None
            for each in nodes:
                if each.op_type != "Scan":
                    attempt.node(each)
                elif attempt.loop(each) is None:
                    return None
                if attempt.findings:
                    return None
            return scan_form(node, self)
        except (UnsupportedUse, *RULE_ERRORS):  # unrolling reports it
            return None

    def loop(self, node: Node) -> Node | None:
        """Adds a Scan as one call, if it stays a loop: the node as it is then. None for all others."""
        if not self.loops or node.op_type != "Scan":
            return None
        try:
            kept = kept_loop(node, self, guard_of(node, self) is not None)
            return kept if kept is not None and self.add_loop(kept) else None
        except (UnsupportedUse, *RULE_ERRORS):  # unrolling reports it
            return None

    def add_loop(self, node: Node) -> bool:
        """Adds the call of a loop, and its results; False where it cannot stay one. Raises UnsupportedUse."""
        guard = guard_of(node, self)
        if guard is not None:
            node = replace(node, attributes={**node.attributes, "body": guard.body})
        inner = Lowering(body_graph(node, self), self.registry, [], self.sizes, loops=False)
        call, values = loop_call(node, self, inner, rounds_of(node, self), guard.name if guard else "")
        if call is None:
            return False
        self.calls.append(call)
        self.values.update(values)
        for i in unchanged_states(node):
            copy = Node(
                "Identity",
                "",
                node.version,
                name=node.name,
                inputs=(node.inputs[i],),
                outputs=(node.outputs[i],),
            )
            self.node(copy)
        return True

    def apply(self, op: Op, node: Node, origin: str) -> None:
        """Adds the call of `op` that `node` is, with types and contents of its outputs. `origin` is the node of the
        graph that it stems from, for messages. Raises UnsupportedUse."""
        node = self.with_draws(op, node)
        ctx = self.ctx(node)
        if op.infer is None:
            raise UnsupportedUse("this operator is not defined for such inputs")
        types = op.infer(ctx)
        contents = self.contents(op, ctx, types)
        computed = []
        for name, tensor, content in zip(node.outputs, types, contents, strict=False):
            if name and content is not None:
                self.add_constant(name, _typed(content, tensor))
            elif name:
                self.values[name] = Value(name, self.equal_types.setdefault(tensor, tensor))
                self.made[name] = ctx
            computed.append(name if content is None else "")
        if any(content is None for content in contents):
            self.note_updates(op, node)
            names = node.inputs, tuple(computed)
            self.calls.append(Call(op.key, node.version, origin, *names, node.attributes))

    def with_draws(self, op: Op, node: Node) -> Node:
        """The node with the count of random draws that its engine starts from: its own where it has a seed."""
        if op.generator is None or len(node.inputs) > op.generator:
            return node
        of = f"{self.graph.source}:{node.outputs[0]}" if "seed" in node.attributes else ""
        name = f"draws of {of or 'the session'}"
        self.values[name] = Value(name, TensorType(ElementType.INT64, (1,)), Role.RNG_COUNTER, of=of)
        absent = ("",) * (op.generator - len(node.inputs))
        return replace(node, inputs=(*node.inputs, *absent, name))

    def ctx(self, node: Node) -> OpContext:
        types = tuple([self.values[n].type if n else None for n in node.inputs])
        known = tuple([self.known.get(n) for n in node.inputs])
        return OpContext(
            node.attributes,
            types,
            known,
            node.version,
            node.inputs,
            result_names=node.outputs,
            earlier=self.made,
            op=f"{node.domain}:{node.op_type}",
        )

    def contents(self, op: Op, ctx: OpContext, types: Sequence[TensorType]) -> tuple[np.ndarray | None, ...]:
        """The contents of each output of `op` applied in `ctx`, of these `types`, where they are known at build time,
        else None."""
        count = len(types)
        told = tuple(op.shape_value(ctx)) if op.shape_value else (None,) * count
        if not any(content is None for content in told):
            return told
        given = [k for k, t in zip(ctx.known, ctx.inputs, strict=True) if t is not None]
        if op.reference is None or not op.folds or not given or any(k is None for k in given):
            return told
        if not _worth_folding(op, types, given):
            return told
        try:
            result = op.reference(ctx.attributes, *ctx.known)
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
        for source, output in op.mutates.items():
            value = self.values[node.inputs[source]]
            if value.role is Role.CONSTANT:
                continue
            if value.role is Role.FROZEN:
                self.values[value.name] = replace(value, role=Role.BUFFER)
            if output is not None and output < len(node.outputs) and node.outputs[output]:
                self.alias[node.outputs[output]] = value.name


def _worth_folding(op: Op, types: Sequence[TensorType], given: Sequence[np.ndarray | None]) -> bool:
    """False where a small constant would become a huge one: Tile and Expand by a number out of a damaged file. The
    gradient of a mean is one number for every element, and smaller as a step than as constants."""
    sizes = [prod(d for d in t.shape or () if isinstance(d, int)) for t in types]
    repeats = op.key == _EXPAND and given[0] is not None and given[0].size == 1 and types[0].element in FLOATS
    if repeats and max(sizes) > MOST_REPEATED:
        return False
    return max(sizes, default=0) <= max(MOST_FOLDED, 4 * sum(k.size for k in given if k is not None))


def _element(array: np.ndarray) -> ElementType:
    element = ElementType.of(array.dtype)
    if element is None:
        raise UnsupportedUse(f"constants of type {array.dtype} are not supported")
    return element


def _typed(content: np.ndarray, tensor: TensorType) -> np.ndarray:
    """Folded contents in the operator's result type; dimensions that are all numbers become numbers."""
    if content.dtype == object and not all(
        isinstance(d, (int, np.integer)) for d in content.ravel().tolist()
    ):
        return content
    typed = content.astype(tensor.element.dtype, copy=False)
    # Weights in another layout stay views of the weights, which may be mapped from a file.
    return typed if typed.nbytes >= _VIEWED else np.ascontiguousarray(typed).reshape(content.shape)
