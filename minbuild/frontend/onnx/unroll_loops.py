"""Loop and Scan, unrolled: every round by itself."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from shlex import quote

from minbuild.frontend.onnx.subgraphs import captured
from minbuild.frontend.onnx.unrolling import Unrolling
from minbuild.ir import ElementType, Graph, Node
from minbuild.ops.core.definition import UnsupportedUse
from minbuild.ops.core.value import Value


class Loop(Unrolling):
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
        yield from self.bind_outputs(carried)

    def check_dependent(self, graph: Graph, limit: int | None, carried: int) -> None:
        """Raises UnsupportedUse for a loop whose end depends on data, where something else must be known. `graph` is
        the body, `limit` the largest number of rounds if it is known, `carried` the number of carried values."""
        if limit is None:
            raise UnsupportedUse(
                "whether it goes on depends on data, and it has no limit. Give it a constant number of rounds at most, "
                "its input 0; or have its condition compare a counter with one (i < 100), or with an input, whose "
                "largest number --max-dim NAME=... gives when the artifacts are made; or have every round take the "
                "slice of its number from a tensor: there are as many rounds at most"
            )
        if any(self.node.outputs[carried:]):
            raise UnsupportedUse(
                "whether it goes on depends on data, and so does how many slices its scan outputs have. Make the "
                "artifacts of the forward model with minbuild, which has room for all of a loop with a limit and no "
                "graph inside, or carry one tensor of the largest size instead"
            )
        self.check_effects(graph)

    def limit(self, name: str) -> int | None:
        content = self.scope.content(name) if name else None
        if name and (content is None or not isinstance(content.ravel().tolist()[0], int)):
            raise UnsupportedUse(
                f"how often it runs ('{name}') depends on data, but must be known when the trainer is built. "
                "Where it follows from a size of an input, fix that with --dim NAME=...; where an input is the number, "
                "give the largest when the artifacts are made, --max-dim NAME=...; else have every round take the "
                "slice of its number from a tensor: there are as many rounds at most"
            )
        return None if content is None else int(content.ravel()[0])


class Scan(Unrolling):
    """Inputs: carried values, then scan inputs, one slice for every round; until opset 8 all with an axis of
    the batch in front, behind the lengths of sequences."""

    def nodes(self) -> Iterator[Node]:
        inputs, count = self.node.inputs, int(self.node.attributes["num_scan_inputs"])
        if self.node.version >= 9:
            states, scans = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
            results = yield from self.scan(states, scans, "")
            yield from self.bind_outputs(results)
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
        yield from self.bind_outputs(outputs)

    def scan(
        self, states: Sequence[str], scans: Sequence[str], label: str
    ) -> Generator[Node, None, list[str]]:
        """The rounds over one set of scan inputs; returns the final carried values and the scan outputs. `states` are
        the values carried into the first round, `scans` the scan inputs, `label` begins the names of nodes."""
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
