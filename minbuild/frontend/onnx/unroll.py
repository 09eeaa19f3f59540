"""If, Loop and Scan are gone before a trainer is built: the branch that is taken, and every round by itself.

Where the condition of an If depends on data, both branches run, and the results of one are chosen; where that of a Loop
does, all rounds up to its constant limit run, and those behind its end change nothing. What a branch or a round reads
enters it through a PassThrough with the condition, which lets no gradient out of what was not taken: it may be no
number. The nodes of a round are written after those of the round before it were looked at, as whether a loop goes on
may be known only then.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import Protocol

import numpy as np

from minbuild.frontend.onnx.subgraphs import captured, graphs_in, renamed
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


def unrolled(node: Node, scope: Scope) -> Iterator[Node] | None:
    """The nodes that run in place of `node`, to be taken one after the other: each may depend on what the scope knows
    of the ones before it. None for other operators. Raises Unknown, at the latest while they are taken."""
    if not is_unrolled(node):
        return None
    kinds = {"If": _If, "Loop": _Loop, "Scan": _Scan}
    return kinds[node.op_type](node, scope).nodes()


def is_unrolled(node: Node) -> bool:
    """True if the node runs graphs of its own."""
    return not node.domain and node.op_type in ("If", "Loop", "Scan")


class _Unrolling:
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
        `around` it has other names."""
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

    def answer(self, results: Sequence[str]) -> Iterator[Node]:
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
        """`x` at one index of an axis, without that axis."""
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
        """One of two values. Raises UnsupportedUse where their types differ."""
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


class _If(_Unrolling):
    def nodes(self) -> Iterator[Node]:
        known = self.flag(self.node.inputs[0])
        if known is None:
            return self.both()
        return self.one("then_branch" if known else "else_branch")

    def one(self, branch: str) -> Iterator[Node]:
        nodes, results = self.run(self.graph(branch), (), branch)
        yield from nodes
        yield from self.answer(results)

    def both(self) -> Iterator[Node]:
        condition = self.condition(self.node.inputs[0])
        pairs: list[list[str]] = []
        for branch, taken in (("then_branch", condition), ("else_branch", ~condition)):
            graph = self.graph(branch)
            self.check_effects(graph)
            around = self.gated(sorted(captured(graph)), taken)
            yield from self.drain()
            nodes, results = self.run(graph, (), branch, around)
            yield from nodes
            pairs.append(results)
        chosen = [
            self.selected(condition, one, other, f"output '{name}'") if name else ""
            for one, other, name in zip(*pairs, self.node.outputs, strict=False)
        ]
        yield from self.drain()
        yield from self.answer(chosen)


class _Loop(_Unrolling):
    """Inputs: how often at most ("" for no limit), whether to start, carried values; the graph takes the number of the
    round, whether it goes on, and the carried values, and gives whether to go on, carried values, and one slice of
    every scan output."""

    def nodes(self) -> Iterator[Node]:
        graph, inputs = self.graph("body"), self.node.inputs
        most, going = inputs[0] if inputs else "", inputs[1] if len(inputs) > 1 else ""
        conditional, carried = bool(going), list(inputs[2:])
        slices: list[list[str]] = [[] for _ in range(len(graph.outputs) - 1 - len(carried))]
        limit, count = self.limit(most), 0
        running: Value | None = None  # whether a round is still one of the loop's, once that depends on data
        while limit is None or count < limit:
            known = self.flag(going) if conditional else True
            if known is False:
                break
            self.check_rounds(count)
            if known is None:
                self.check_dependent(graph, limit, len(carried))
                still = self.condition(going)
                running = still if running is None else running & still
            start = self.number(count), self.written.constant(True, ElementType.BOOL).name
            gates = {}
            if running is not None:
                yield from self.drain()
                gates = self.gated(sorted({*captured(graph), *carried} - {""}), running)
            yield from self.drain()
            arguments = (*start, *(gates.get(n, n) for n in carried))
            nodes, (going, *results) = self.run(graph, arguments, str(count), gates)
            yield from nodes
            results, parts = results[: len(carried)], results[len(carried) :]
            if running is not None:
                results = [
                    self.selected(running, new, old, f"carried value {i}")
                    for i, (new, old) in enumerate(zip(results, carried, strict=True))
                ]
                yield from self.drain()
            carried = results
            for all_slices, one in zip(slices, parts, strict=True):
                all_slices.append(one)
            count += 1
        if running is None:
            carried += [self.stacked(each, 0) for each in slices]
            yield from self.drain()
        yield from self.answer(carried)

    def check_dependent(self, graph: Graph, limit: int | None, carried: int) -> None:
        """Raises UnsupportedUse for a loop whose end depends on data, where something else must be known."""
        if limit is None:
            raise UnsupportedUse(
                "whether it goes on depends on data, and it has no limit. Give it a constant number of rounds at most, "
                "its input 0"
            )
        if any(self.node.outputs[carried:]):
            raise UnsupportedUse(
                "whether it goes on depends on data, and so does how many slices its scan outputs have. Carry one "
                "tensor of the largest size instead"
            )
        self.check_effects(graph)

    def limit(self, name: str) -> int | None:
        content = self.scope.content(name) if name else None
        if name and (content is None or not isinstance(content.ravel().tolist()[0], int)):
            raise UnsupportedUse(
                f"how often it runs ('{name}') depends on data, but must be known when the trainer is built. "
                "Export the model without it"
            )
        return None if content is None else int(content.ravel()[0])


class _Scan(_Unrolling):
    """Inputs: carried values, then scan inputs, one slice for every round; until opset 8 all with an axis of
    the batch in front, behind the lengths of sequences."""

    def nodes(self) -> Iterator[Node]:
        inputs, count = self.node.inputs, int(self.node.attributes["num_scan_inputs"])
        if self.node.version >= 9:
            states, scans = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
            results = yield from self.scan(states, scans, "")
            yield from self.answer(results)
            return
        if inputs[0]:
            raise UnsupportedUse("sequences of several lengths (input 0) are not supported. Leave it out")
        inputs = inputs[1:]
        made: list[list[str]] = []
        for sample in range(self.size(inputs[-1], 0)):
            own = [self.element(x, sample, 0) for x in inputs]
            yield from self.drain()
            made.append(
                (yield from self.scan(own[: len(own) - count], own[len(own) - count :], f"{sample}/"))
            )
        outputs = [self.stacked(each, 0) for each in zip(*made, strict=True)]
        yield from self.drain()
        yield from self.answer(outputs)

    def scan(
        self, states: Sequence[str], scans: Sequence[str], label: str
    ) -> Generator[Node, None, list[str]]:
        """The rounds over one set of scan inputs; returns the final carried values and the scan outputs."""
        graph, attributes = self.graph("body"), self.node.attributes
        axes = self.axes("scan_input_axes", [len(self.scope.shape(x)) for x in scans])
        backward = attributes.get("scan_input_directions" if self.node.version >= 9 else "directions", ())
        rounds = self.size(scans[0], axes[0])
        self.check_rounds(rounds)
        carried = list(states)
        slices: list[list[str]] = [[] for _ in range(len(graph.outputs) - len(carried))]
        for count in range(rounds):
            places = [rounds - 1 - count if _at(backward, i) else count for i in range(len(scans))]
            own = [self.element(x, p, a) for x, p, a in zip(scans, places, axes, strict=True)]
            yield from self.drain()
            nodes, results = self.run(graph, (*carried, *own), f"{label}{count}")
            yield from nodes
            carried = results[: len(carried)]
            for all_slices, one in zip(slices, results[len(carried) :], strict=True):
                all_slices.append(one)
        if not rounds:
            return [*carried, *("" for _ in slices)]
        axes = self.axes("scan_output_axes", [len(self.scope.shape(each[0])) + 1 for each in slices])
        backward = attributes.get("scan_output_directions", ())
        ordered = (each[::-1] if _at(backward, i) else each for i, each in enumerate(slices))
        outputs = [self.stacked(each, axis) for each, axis in zip(ordered, axes, strict=True)]
        yield from self.drain()
        return [*carried, *outputs]

    def axes(self, name: str, ranks: Sequence[int]) -> list[int]:
        given = self.node.attributes.get(name, ())
        return [_at(given, i) % rank if rank else 0 for i, rank in enumerate(ranks)]

    def size(self, name: str, axis: int) -> int:
        size = self.scope.shape(name)[axis]
        if not isinstance(size, int):
            raise UnsupportedUse(
                f"how often it runs is the free dimension {size}. Fix it with --dim {quote(str(size))}=..."
            )
        return size


def _at(values: Sequence[int], i: int) -> int:
    """One of the numbers of an attribute that may be left out; 0 then."""
    return int(values[i]) if i < len(values) else 0
