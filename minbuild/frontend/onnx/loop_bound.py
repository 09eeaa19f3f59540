"""The number of rounds of a Loop: its input 0, or what the counter that its condition compares allows at most, or the
number of slices of a tensor that every round takes one of.

Exporters of `while` loops write no limit, but a condition such as `i < 20 and error > 0.1`, where every round adds 1 to
the carried value `i`. Where that compares with data, such as the length of a sequence in a longer tensor, a round that
runs takes slice `i`, so there are at most as many rounds as slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from minbuild.frontend.onnx.unrolling import Scope
from minbuild.ir import Graph, Node
from minbuild.ir.dims import Dim

_PASSING = frozenset({"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"})
_MIRRORED = {
    "Less": "Greater",
    "Greater": "Less",
    "LessOrEqual": "GreaterOrEqual",
    "GreaterOrEqual": "LessOrEqual",
}
_NEVER_REACHED = 1 << 31  # rounds that stand for no limit


@dataclass(frozen=True)
class Bound:
    """The largest number of rounds, and the name of a value around the loop that holds it, where it is a free
    dimension. `exact` if the condition compares nothing else, so that it is the number of rounds; `counters` are the
    positions of carried values that count rounds from 0 on. `limit` names input 0 of the loop where that is data;
    `by_slices` if nothing but slices bounds the loop."""

    rounds: Dim
    name: str = ""
    exact: bool = False
    counters: tuple[int, ...] = ()
    limit: str = ""
    by_slices: bool = False


@dataclass(frozen=True)
class _Counter:
    position: int  # among carried values
    start: int
    step: int
    results: frozenset[str]  # names of its value behind a round
    values: frozenset[str]  # names of its value in a round


def bound_of(node: Node, graph: Graph, scope: Scope) -> Bound | None:
    """The bound of the Loop `node` with the body `graph`; None where none is known. `scope` knows the values around."""
    names = _Names(graph, scope)
    counters = [c for i in range(len(node.inputs) - 2) if (c := names.counter(node, i)) is not None]
    counting = tuple(c.position for c in counters if (c.start, c.step) == (0, 1))
    found: list[Bound] = []
    most, limit = node.inputs[0], ""
    if most:
        content = scope.content(most)
        if content is None:
            limit = most
        elif content.size != 1:
            return None
        else:
            rounds = content.ravel().tolist()[0]
            if not isinstance(rounds, int) or rounds < _NEVER_REACHED:
                found.append(Bound(rounds, most))
    tests = list(names.conjuncts(graph.outputs[0])) if node.inputs[1] else []
    limits = [names.limit(test, counters) for test in tests]
    exact = len(limits) == 1 and not found
    found += [Bound(b.rounds, b.name, exact) for b in limits if b is not None]
    numbers = [b for b in found if isinstance(b.rounds, int)]
    best = min(numbers, key=lambda b: int(str(b.rounds))) if numbers else next(iter(found), None)
    if best is None or limit:
        slices = names.slices(
            [list(graph.inputs)[0], *(n for c in counters if c.position in counting for n in c.values)]
        )
        best = Bound(slices, by_slices=True) if best is None and slices is not None else best
        return None if best is None else replace(best, exact=False, counters=counting, limit=limit)
    if isinstance(best.rounds, int) and best.rounds < 1:
        return None
    always = bool(most) and (not node.inputs[1] or constantly_true(graph, scope))
    return Bound(best.rounds, best.name, best.exact or always, counting)


def constantly_true(graph: Graph, scope: Scope) -> bool:
    """True if the body says after each round that the loop goes on, or passes on that it does."""
    names = _Names(graph, scope)
    name = names.source(graph.outputs[0])
    content = names.content(name)
    if content is not None and content.size == 1 and content.dtype != object:
        return bool(content.ravel()[0])
    return name == list(graph.inputs)[1]


class _Names:
    """The values of a body: their makers and contents."""

    def __init__(self, graph: Graph, scope: Scope) -> None:
        self.graph, self.scope = graph, scope
        self.maker = {n: inner for inner in graph.nodes for n in inner.outputs if n}

    def content(self, name: str) -> np.ndarray | None:
        if name in self.graph.initializers:
            return np.asarray(self.graph.initializers[name])
        inner = self.maker.get(name)
        if inner is None:
            return None if name in self.graph.inputs else self.scope.content(name)
        value = inner.attributes.get("value") if inner.op_type == "Constant" else None
        return value if isinstance(value, np.ndarray) else None

    def number(self, name: str) -> Dim | None:
        content = self.content(self.source(name))
        if content is None or content.size != 1:
            return None
        found = content.ravel().tolist()[0]
        return None if isinstance(found, (float, bool)) else found

    def source(self, name: str) -> str:
        """The value that others only pass on."""
        while (inner := self.maker.get(name)) is not None and not inner.domain and inner.op_type in _PASSING:
            name = inner.inputs[0]
        return name

    def counter(self, node: Node, i: int) -> _Counter | None:
        """Carried value number `i` as a counter."""
        inside, after = list(self.graph.inputs)[2 + i], self.graph.outputs[1 + i]
        inner = self.maker.get(self.source(after))
        start = self.scope.content(node.inputs[2 + i])
        if inner is None or inner.domain or inner.op_type != "Add" or start is None or start.size != 1:
            return None
        first = start.ravel().tolist()[0]
        one, other = map(self.source, inner.inputs)
        step = self.number(other if one == inside else one)
        if inside not in (one, other) or not isinstance(first, int) or not isinstance(step, int) or step < 1:
            return None
        return _Counter(i, first, step, frozenset({self.source(after)}), frozenset({inside}))

    def slices(self, numbers: list[str]) -> Dim | None:
        """The number of slices of a tensor around the loop that every round takes the one of its number from, `numbers`
        being names of the number; the smallest, or one that is free."""
        found: list[Dim] = []
        for inner in self.graph.nodes:
            if inner.domain or inner.op_type != "Gather" or self.source(inner.inputs[1]) not in numbers:
                continue
            x = inner.inputs[0]
            if x not in self.maker and x not in self.graph.inputs and x not in self.graph.initializers:
                shape = self.scope.shape(x)
                found.append(shape[int(inner.attributes.get("axis", 0)) % len(shape)])
        known = [size for size in found if isinstance(size, int)]
        return min(known) if known else next(iter(found), None)

    def conjuncts(self, name: str) -> Iterator[Node | None]:
        """The conditions that all have to hold; None for one that is no node of the body."""
        inner = self.maker.get(self.source(name))
        if inner is not None and not inner.domain and inner.op_type == "And":
            for part in inner.inputs:
                yield from self.conjuncts(part)
        else:
            yield inner

    def limit(self, test: Node | None, counters: list[_Counter]) -> Bound | None:
        """The bound that a condition sets by comparing a counter."""
        if test is None or test.domain or test.op_type not in _MIRRORED:
            return None
        (one, other), relation = map(self.source, test.inputs), test.op_type
        for counter in counters:
            counts = counter.results | counter.values
            if other in counts:
                one, other, relation = other, one, _MIRRORED[relation]
            if one not in counts or relation not in ("Less", "LessOrEqual"):
                continue
            end, late = self.number(other), one in counter.values
            if isinstance(end, int):
                span = end + (relation == "LessOrEqual") - counter.start
                return Bound(max(1, -(-span // counter.step) + late))
            plain = (counter.start, counter.step, relation, late) == (0, 1, "Less", False)
            if end is not None and plain:
                return Bound(end, self.source(other))
        return None
