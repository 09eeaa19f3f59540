"""Activations that exporters write as several nodes, as the one operator that they are: Gelu and Swish.

Of one operator, a training step keeps the input; of its parts, it would keep what each of them makes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.ir import Graph, Node

_MICROSOFT = "com.microsoft"
_CLOSE = 1e-5  # relative: constants are written with 7 digits or more
_CUBIC = 0.044715


def with_fused_activations(graph: Graph, kept: Collection[str] = ()) -> Graph:
    """`graph` with one node in the place of those that compute x P(x), P the normal distribution's integral or its
    approximation by tanh, or x sigmoid(a x). The values `kept` stay, as well as what several nodes read."""
    return _Fusion(graph, frozenset(kept)).run()


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of values and a number, and the nodes that compute it."""

    factor: float
    values: tuple[str, ...]
    nodes: frozenset[int]


@dataclass
class _Fusion:
    graph: Graph
    kept: frozenset[str]
    makers: dict[str, int] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)

    def run(self) -> Graph:
        nodes = self.graph.nodes
        self.makers = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
        self.reads = Counter(name for node in nodes for name in node.inputs)
        self.reads.update((*self.graph.outputs, *self.kept))
        fused: dict[int, Node] = {}
        gone: set[int] = set()
        for index in reversed(range(len(nodes))):
            if index not in gone and nodes[index].op_type in ("Mul", "Div") and not nodes[index].domain:
                found = self.activation(index)
                if found is not None:
                    fused[index], covered = found
                    gone |= covered - {index}
        if not fused:
            return self.graph
        return replace(self.graph, nodes=tuple(fused.get(i, n) for i, n in enumerate(nodes) if i not in gone))

    def activation(self, index: int) -> tuple[Node, frozenset[int]] | None:
        """The node in place of the one at `index`, and the nodes that it covers."""
        node = self.graph.nodes[index]
        whole = self.product(node.outputs[0], root=True)
        if len(whole.values) != 2:
            return None
        for x, gate in (whole.values, whole.values[::-1]):
            found = self.sigmoid(x, gate) if _near(whole.factor, 1) else None
            found = found or (self.gelu(x, gate) if _near(whole.factor, 0.5) else None)
            if found is not None:
                op_type, attributes, covered = found
                made = replace(
                    node, op_type=op_type, domain=_MICROSOFT, version=1, inputs=(x,), attributes=attributes
                )
                return made, whole.nodes | covered
        return None

    def sigmoid(self, x: str, gate: str) -> tuple[str, dict[str, float], frozenset[int]] | None:
        made = self.inner(gate, "Sigmoid")
        inside = self.product(self.graph.nodes[made].inputs[0]) if made is not None else None
        if made is None or inside is None or inside.values != (x,):
            return None
        return "QuickGelu", {"alpha": inside.factor}, inside.nodes | {made}

    def gelu(self, x: str, gate: str) -> tuple[str, dict[str, float], frozenset[int]] | None:
        """For a gate 1 + erf(x / sqrt(2)), or 1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))."""
        one = self.sum_with(gate, 1.0)
        for op_type in ("Erf", "Tanh") if one else ():
            assert one is not None
            made = self.inner(one[0], op_type)
            if made is None:
                continue
            inside = self.product(self.graph.nodes[made].inputs[0])
            covered = one[1] | {made} | inside.nodes
            if op_type == "Erf":
                if inside.values == (x,) and _near(inside.factor, math.sqrt(0.5)):
                    return "Gelu", {}, covered
            elif len(inside.values) == 1 and _near(inside.factor, math.sqrt(2 / math.pi)):
                cubic = self.cubic(x, inside.values[0])
                if cubic is not None:
                    return "FastGelu", {}, covered | cubic
        return None

    def cubic(self, x: str, name: str) -> frozenset[int] | None:
        """The nodes that compute `name`, if that is x + 0.044715 x^3."""
        made = self.inner(name, "Add")
        inputs = self.graph.nodes[made].inputs if made is not None else ()
        if made is None or x not in inputs:
            return None
        power = self.product(inputs[1] if inputs[0] == x else inputs[0])
        if not _near(power.factor, _CUBIC):
            return None
        if power.values == (x, x, x):
            return power.nodes | {made}
        raised = self.inner(power.values[0], "Pow") if len(power.values) == 1 else None
        if raised is None:
            return None
        base, exponent = self.graph.nodes[raised].inputs
        return power.nodes | {made, raised} if base == x and self.number(exponent) == 3 else None

    def sum_with(self, name: str, number: float) -> tuple[str, frozenset[int]] | None:
        """The other summand of a sum `name` with this number."""
        made = self.inner(name, "Add")
        if made is None:
            return None
        left, right = self.graph.nodes[made].inputs
        for one, other in ((left, right), (right, left)):
            if self.number(one) == number:
                return other, frozenset({made})
        return None

    def product(self, name: str, *, root: bool = False) -> _Product:
        """The factors of `name`, of nodes that nothing else reads but for the `root`."""
        made = self.makers.get(name) if root else self.inner(name, "Mul", "Div")
        node = self.graph.nodes[made] if made is not None else None
        if made is None or node is None or len(node.inputs) != 2:
            return _Product(1.0, (name,), frozenset())
        left, right = node.inputs
        divisor = self.number(right) if node.op_type == "Div" else None
        if node.op_type == "Div":
            if not divisor:
                return _Product(1.0, (name,), frozenset())
            rest = self.product(left)
            return replace(rest, factor=rest.factor / divisor, nodes=rest.nodes | {made})
        parts = [
            _Product(n, (), frozenset()) if (n := self.number(i)) is not None else self.product(i)
            for i in (left, right)
        ]
        return _Product(
            parts[0].factor * parts[1].factor,
            parts[0].values + parts[1].values,
            parts[0].nodes | parts[1].nodes | {made},
        )

    def inner(self, name: str, *op_types: str) -> int | None:
        """The node that makes `name`, if it is one of ONNX's `op_types` and one node reads it, once."""
        made = self.makers.get(name)
        if made is None or self.reads[name] != 1:
            return None
        node = self.graph.nodes[made]
        return made if node.op_type in op_types and not node.domain else None

    def number(self, name: str) -> float | None:
        """The only element of a constant."""
        made = self.makers.get(name)
        content = self.graph.initializers.get(name) if name not in self.kept else None
        if made is not None and self.graph.nodes[made].op_type == "Constant":
            content = self.graph.nodes[made].attributes.get("value")
        if not isinstance(content, np.ndarray) or content.size != 1 or content.dtype.kind not in "fiu":
            return None
        return float(content.reshape(-1)[0])


def _near(number: float, expected: float) -> bool:
    return math.isclose(number, expected, rel_tol=_CLOSE)
