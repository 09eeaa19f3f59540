"""Loops, and Scans along other axes, as Scans along axis 0: the form that stays a loop.

The rounds of a Loop are those of a scan input: of a tensor that every round takes the slice of its own number from, or
of one without elements. Where its end depends on data, it runs all rounds of its bound, and a state says whether a
round is still one of the loop's: others leave every state as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.frontend.onnx import loops
from minbuild.frontend.onnx.loop_bound import Bound, bound_of
from minbuild.frontend.onnx.scan_axes import along_axis_0
from minbuild.frontend.onnx.subgraphs import captured, graphs_in
from minbuild.frontend.onnx.unrolling import Scope
from minbuild.ir import ElementType, Graph, Node, TensorType
from minbuild.ops.core.definition import UnsupportedUse

_ANY = TensorType(ElementType.FLOAT, None)
_MOST_SIZES = 16  # with fewer rounds, loops that compute whole numbers are unrolled: those may be known sizes
_SHAPES = frozenset({"Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape"})


def scan_form(node: Node, scope: Scope) -> Iterator[Node] | None:
    """The nodes that run in place of `node`, one of them a Scan along axis 0; each may depend on what `scope` knows of
    those before it. None for nodes that are unrolled, or are such a Scan. Raises UnsupportedUse, at the latest while
    they are taken."""
    graph = node.attributes.get("body")
    if node.domain or node.op_type not in ("Loop", "Scan") or not isinstance(graph, Graph):
        return None
    if any(True for inner in graph.nodes for _ in graphs_in(inner)):
        return None
    return along_axis_0(node, scope) if node.op_type == "Scan" else _of_loop(node, graph, scope)


# ----------------------------------------------------------------------------------------------------------- Loop


def stacking_form(
    node: Node, scope: Scope, ran: str = "", elements: Mapping[str, ElementType] | None = None
) -> tuple[Node, Iterator[Node]] | None:
    """For a `node`, a Loop whose end depends on data: with scan outputs of another name, `NAME/rounds`, which have a
    slice for each round of its bound, and the nodes that run in its place; `scope` knows the values around it. With
    `ran`, slices behind the end are zero, of the type that `elements` has for each, and the value `ran` [rounds] says
    which rounds were the loop's. None for other nodes, and where nothing bounds the loop."""
    found = _ends(node, scope)
    if found is None or not found.dependent or not any(node.outputs[len(node.inputs) - 2 :]):
        return None
    carried = len(node.inputs) - 2
    prefix = next(name for name in node.outputs if name)
    stacks = [name or f"{prefix}/unread {i}" for i, name in enumerate(node.outputs[carried:])]
    whole = replace(node, outputs=(*node.outputs[:carried], *(f"{name}/rounds" for name in stacks)))
    form = replace(found, node=whole, ran=ran, elements=elements or {})
    return whole, form.nodes()


def _of_loop(node: Node, graph: Graph, scope: Scope) -> Iterator[Node] | None:
    form = _ends(node, scope)
    if form is None:
        return None
    bound, carried = form.bound, node.inputs[2:]
    counts = any(out and not scope.element(x).is_real for out, x in zip(node.outputs, carried, strict=False))
    fewest = max(loops.LEAST_ROUNDS, _MOST_SIZES if counts else 0)
    few = isinstance(bound.rounds, int) and bound.rounds < fewest
    if few and not bound.by_slices and not bound.limit:  # unrolling knows the number of rounds, too
        return None
    if form.dependent and any(node.outputs[len(carried) :]):
        return None  # unrolling says why
    return form.nodes()


def _ends(node: Node, scope: Scope) -> _LoopForm | None:
    """The form of a Loop, with its bound; None for nodes that have none."""
    inputs, graph = node.inputs, node.attributes.get("body")
    if node.domain or node.op_type != "Loop" or not isinstance(graph, Graph) or len(inputs) < 2:
        return None
    going, carried = inputs[1], inputs[2:]
    if not all(carried) or len(graph.inputs) != len(inputs) or len(graph.outputs) < 1 + len(carried):
        return None
    start = scope.content(going) if going else np.array(True)
    starts = None if start is None or start.size != 1 or start.dtype == object else bool(start.ravel()[0])
    bound = None if starts is False else bound_of(node, graph, scope)
    if bound is None:
        return None
    dependent = not (starts and bound.exact)
    return _LoopForm(node, graph, scope, bound=bound, going=going if dependent else "", dependent=dependent)


@dataclass
class _LoopForm:
    """One Loop becoming a Scan. `going` is the condition of the first round where the end depends on data; with `ran`,
    which names the rounds that ran, slices behind the end are zero, of the type that `elements` has for each."""

    node: Node
    graph: Graph
    scope: Scope
    bound: Bound
    going: str
    dependent: bool
    ran: str = ""
    elements: Mapping[str, ElementType] = field(default_factory=dict)

    def nodes(self) -> Iterator[Node]:
        node, graph = self.node, self.graph
        self.prefix = next(name for name in node.outputs if name)
        self.carried = list(node.inputs[2:])
        names = list(graph.inputs)
        self.number, self.condition, self.states = names[0], names[1], names[2:]
        body: list[Node] = []
        scans: dict[tuple[str, int], str] = {}
        numbers = self.counts_of_rounds()
        for inner in graph.nodes:
            rank = self.slices(inner, numbers)
            if rank is None:
                body.append(inner)
                continue
            x, whole = inner.inputs[0], self.scope.shape(inner.inputs[0])
            axis = int(inner.attributes.get("axis", 0)) % len(whole)
            if (x, axis) not in scans:
                scans[x, axis] = f"{self.prefix}/slice {len(scans)}"
                yield from self.scanned(x, axis)
            one, result = scans[x, axis], inner.outputs[0]
            if not rank:
                body.append(self.plain("Identity", (one,), result))
            elif node.version < 13:
                body.append(replace(self.plain("Unsqueeze", (one,), result), attributes={"axes": (axis,)}))
            else:
                place = f"{self.prefix}/axis {axis} of {result}"
                body.append(self.constant(place, np.array([axis])))
                body.append(self.plain("Unsqueeze", (one, place), result))
        sources = [self.source(x, axis) for x, axis in scans] or [f"{self.prefix}/rounds without elements"]
        slices = list(scans.values()) or [f"{self.prefix}/nothing"]
        if not scans:
            yield from self.without_elements(sources[0])
        yield from self.scan(body, sources, slices)

    # ------------------------------------------------------------------------------------------------- the Scan

    def scan(self, body: list[Node], sources: Sequence[str], slices: Sequence[str]) -> Iterator[Node]:
        node, graph, prefix = self.node, self.graph, self.prefix
        read = {n for each in body for n in each.inputs} | set(graph.outputs)
        before, inside, after = (
            list(self.carried),
            list(self.states),
            list(graph.outputs[1 : 1 + len(self.carried)]),
        )
        results = list(node.outputs[: len(self.carried)])
        tail: list[Node] = []
        number = ""
        if self.number in read or self.bound.limit:
            first, one, following = (f"{prefix}/{n}" for n in ("number 0", "one", "number of the next round"))
            axes = (1,) * len(graph.inputs[self.number].shape or ())
            yield self.constant(first, np.zeros(axes, np.int64))
            body = [self.constant(one, np.array(1)), *body]
            tail.append(self.plain("Add", (self.number, one), following))
            number = following
            before, inside, after = [first, *before], [self.number, *inside], [following, *after]
            results = [f"{prefix}/number of rounds", *results]
        if self.dependent:
            state = f"{prefix}/running"
            body = [self.plain("Identity", (state,), self.condition), *body, *tail]
            tail = []
            yield from self.started()
            goes_on = self.goes_on(body, number)
            following = f"{prefix}/running on"
            masked = []
            for inner, new in zip(inside, after, strict=True):
                masked.append(inner if new == inner else f"{prefix}/{inner} behind the round")
                if new != inner:
                    tail.append(self.plain("Where", (state, new, inner), masked[-1]))
            tail.append(self.plain("And", (state, goes_on), following))
            before, inside, after = [f"{prefix}/starts", *before], [state, *inside], [following, *masked]
            results = [f"{prefix}/still running", *results]
        else:
            body = [self.constant(self.condition, np.array(True)), *body]
        stacked = list(graph.outputs[1 + len(self.carried) :])
        stacks = list(node.outputs[len(self.carried) :])
        if self.ran:
            stacked, stacks = self.chosen(stacked, stacks, inside[0], tail), [*stacks, self.ran]
        outputs = (*self.own(inside, after, body, tail), *stacked)
        whole = replace(
            graph, nodes=(*body, *tail), inputs=dict.fromkeys((*inside, *slices), _ANY), outputs=outputs
        )
        yield Node(
            "Scan",
            "",
            node.version,
            name=node.name or prefix,
            inputs=(*before, *sources),
            outputs=(*results, *stacks),
            attributes={"body": whole, "num_scan_inputs": len(sources)},
        )

    def chosen(
        self, slices: Sequence[str], stacks: Sequence[str], running: str, tail: list[Node]
    ) -> list[str]:
        """The slices of a round, zero where it is not `running`, and that; appended to `tail`."""
        found = []
        for i, (name, stack) in enumerate(zip(slices, stacks, strict=True)):
            zero, slice_ = f"{self.prefix}/zero {i}", f"{self.prefix}/{name} of the loop {i}"
            tail.append(self.constant(zero, np.zeros((), self.elements[stack].dtype)))
            tail.append(self.plain("Where", (running, name, zero), slice_))
            found.append(slice_)
        tail.append(self.plain("Identity", (running,), f"{self.prefix}/ran"))
        return [*found, f"{self.prefix}/ran"]

    def own(
        self, inside: Sequence[str], after: Sequence[str], body: list[Node], tail: list[Node]
    ) -> list[str]:
        """The states behind a round, each made by a node of its own or unchanged. `inside` and `after` are the states
        in a round and behind it; copies are appended to `tail`."""
        made = {n for each in (*body, *tail) for n in each.outputs}
        found = list(self.graph.outputs[1 + len(self.carried) :])
        for before, name in zip(inside, after, strict=True):
            if name != before and (name not in made or name in found):
                copy = f"{self.prefix}/{name} as state {len(found)}"
                tail.append(self.plain("Identity", (name,), copy))
                name = copy
            found.append(name)
        return found[len(found) - len(after) :]

    def started(self) -> Iterator[Node]:
        """The state of the first round: true, or the condition, and a number of rounds that is data allows one."""
        starts = f"{self.prefix}/starts"
        nodes: list[Node] = []
        conditions = [self.without_axes(nodes, self.going, "begins")] if self.going else []
        if self.bound.limit:
            none, some = f"{self.prefix}/no round", f"{self.prefix}/some rounds"
            most = self.without_axes(nodes, self.bound.limit, "most rounds")
            nodes += [self.constant(none, np.array(0)), self.plain("Less", (none, most), some)]
            conditions.append(some)
        yield from nodes
        if not conditions:
            yield self.constant(starts, np.array(True))
        else:
            yield self.plain("Identity" if len(conditions) < 2 else "And", conditions, starts)

    def goes_on(self, body: list[Node], number: str) -> str:
        """Appends to the body the condition of the round behind it, whose `number` is given."""
        conditions = []
        if self.node.inputs[1]:
            conditions.append(self.without_axes(body, self.graph.outputs[0], "goes on"))
        if self.bound.limit:
            following = self.without_axes(body, number, "following number")
            most = self.without_axes(body, self.bound.limit, "most rounds here")
            less = f"{self.prefix}/another round"
            body.append(self.plain("Less", (following, most), less))
            conditions.append(less)
        if len(conditions) < 2:
            return conditions[0]
        body.append(self.plain("And", tuple(conditions), f"{self.prefix}/goes on within"))
        return f"{self.prefix}/goes on within"

    def without_axes(self, nodes: list[Node], value: str, label: str) -> str:
        """Appends a number or condition of one element as one without axes; its name."""
        shape, name = f"{self.prefix}/{label}, no axes", f"{self.prefix}/{label}"
        nodes.append(self.constant(shape, np.array([], np.int64)))
        nodes.append(self.plain("Reshape", (value, shape), name))
        return name

    # ------------------------------------------------------------------------------------------------- its rounds

    def without_elements(self, name: str) -> Iterator[Node]:
        """A tensor of as many rows as rounds, each without elements."""
        shape = f"{self.prefix}/rounds and nothing"
        if isinstance(self.bound.rounds, int):
            yield self.constant(shape, np.array([self.bound.rounds, 0]))
        else:
            flat, nothing, rounds = (f"{self.prefix}/{n}" for n in ("one axis", "no elements", "rounds"))
            yield self.constant(flat, np.array([1]))
            yield self.constant(nothing, np.array([0]))
            if not self.bound.name:
                raise UnsupportedUse(
                    "how often it runs depends on data. Give it a constant number of rounds at most"
                )
            yield self.plain("Reshape", (self.bound.name, flat), rounds)
            yield replace(self.plain("Concat", (rounds, nothing), shape), attributes={"axis": 0})
        yield self.plain("ConstantOfShape", (shape,), name)

    def counts_of_rounds(self) -> dict[str, int]:
        """Values of the body that are the number of the round, from 0 on, and their ranks."""
        shape = self.graph.inputs[self.number].shape
        found = {self.number: len(shape or ())}
        for i in self.bound.counters:
            found[self.states[i]] = len(self.scope.shape(self.carried[i]))
        for inner in self.graph.nodes:
            if inner.domain or inner.op_type not in _SHAPES or inner.inputs[0] not in found:
                continue
            rank = found[inner.inputs[0]]
            if inner.op_type == "Cast" and int(inner.attributes["to"]) not in (
                ElementType.INT64,
                ElementType.INT32,
            ):
                continue
            if inner.op_type == "Unsqueeze":
                rank += 1
            elif inner.op_type == "Squeeze":
                rank = 0
            elif inner.op_type == "Reshape":
                content = self.content(inner.inputs[1])
                if content is None:
                    continue
                rank = content.size
            found[inner.outputs[0]] = rank
        return found

    def content(self, name: str) -> np.ndarray | None:
        """A constant of the body or around it."""
        if name in self.graph.initializers:
            return np.asarray(self.graph.initializers[name])
        for inner in self.graph.nodes:
            if name in inner.outputs:
                value = inner.attributes.get("value")
                return value if inner.op_type == "Constant" and isinstance(value, np.ndarray) else None
        return None if name in self.graph.inputs else self.scope.content(name)

    def slices(self, inner: Node, numbers: dict[str, int]) -> int | None:
        """The rank of the index, 0 or 1, where a node takes from a tensor around the loop the slice of the round's
        number."""
        if inner.op_type != "Gather" or inner.domain or inner.inputs[1] not in numbers:
            return None
        x, rank = inner.inputs[0], numbers[inner.inputs[1]]
        if x not in captured(self.graph) or rank > 1:
            return None
        shape = self.scope.shape(x)
        size = shape[int(inner.attributes.get("axis", 0)) % len(shape)]
        rounds = self.bound.rounds
        enough = isinstance(size, int) and isinstance(rounds, int) and size >= rounds
        return rank if size == rounds or enough else None

    def source(self, x: str, axis: int) -> str:
        """The tensor that the rounds scan in place of `x`."""
        cut = self.scope.shape(x)[axis] != self.bound.rounds
        return f"{self.prefix}/{x} along axis {axis}" if axis or cut else x

    def scanned(self, x: str, axis: int) -> Iterator[Node]:
        """The nodes that make it."""
        whole, rounds, name = self.scope.shape(x), self.bound.rounds, self.source(x, axis)
        cut = f"{name}, cut" if axis else name
        if whole[axis] != rounds:
            ends = {"starts": 0, "ends": rounds, "axes": axis}
            for key, value in ends.items():
                yield self.constant(f"{cut}/{key}", np.array([value]))
            yield self.plain("Slice", (x, *(f"{cut}/{key}" for key in ends)), cut)
        if axis:
            order = (axis, *(i for i in range(len(whole)) if i != axis))
            source = cut if whole[axis] != rounds else x
            yield replace(self.plain("Transpose", (source,), name), attributes={"perm": order})

    def constant(self, name: str, value: np.ndarray) -> Node:
        return replace(self.plain("Constant", (), name), attributes={"value": value})

    def plain(self, op: str, inputs: Sequence[str], output: str) -> Node:
        return Node(
            op, "", self.node.version, name=f"{output} ({op})", inputs=tuple(inputs), outputs=(output,)
        )
