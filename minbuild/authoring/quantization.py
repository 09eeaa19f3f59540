"""Quantisation-aware training: pairs of QuantizeLinear and DequantizeLinear as FakeQuant, through which gradients flow.

ONNX Runtime's training tools do the same for one scale of a whole tensor; here scales along an axis, or of blocks,
serve too. Rounding counts as the identity within the range of the quantised type (straight-through estimator), and
nothing flows where a number is cut off.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minbuild.frontend.onnx.quantization_pairs import FAKE_QUANT, MICROSOFT, QUANTIZED_TYPES
from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import Graph, Node

_CURE = "Quantise with constant float scales and 8- or 16-bit zero points to train through it."


def with_fake_quantization(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph with FakeQuant nodes in place of pairs with constant scales; and notes on what quantises parameters in
    another way."""
    pairs = _Pairs(graph)
    nodes = tuple(pairs.rereading(pairs.replaced(node)) for node in graph.nodes)
    if pairs.added:
        graph = replace(graph, nodes=nodes, initializers={**graph.initializers, **pairs.added})
        graph = replace(graph, nodes=tuple(_without_unread(graph)))
    return graph, tuple(_notes(graph))


def _without_unread(graph: Graph) -> Iterator[Node]:
    """The nodes but those of pairs that nothing reads any longer."""
    read = {name for node in graph.nodes for name in names_read(node)} | set(graph.outputs)
    clipped = {
        n
        for node in graph.nodes
        if _is(node, "Clip") and read.isdisjoint(node.outputs)
        for n in node.inputs[:1]
    }
    for node in graph.nodes:
        unread = read.isdisjoint(node.outputs) or clipped.issuperset(node.outputs)
        if not (unread and _is(node, "QuantizeLinear", "Clip", "Identity")):
            yield node


def _is(node: Node | None, *op_types: str) -> bool:
    return node is not None and node.op_type in op_types and node.domain in ("", MICROSOFT)


@dataclass
class _Pairs:
    graph: Graph

    def __post_init__(self) -> None:
        self.makers = {name: node for node in self.graph.nodes for name in node.outputs if name}
        self.constants = {n: np.asarray(a) for n, a in self.graph.initializers.items()}
        for node in self.graph.nodes:
            if _is(node, "Constant") and isinstance(node.attributes.get("value"), np.ndarray):
                self.constants[node.outputs[0]] = node.attributes["value"]
        self.added: dict[str, np.ndarray] = {}  # scales and zero points, as real numbers
        self.results: dict[Hashable, str] = {}  # by what is computed
        self.equal: dict[str, str] = {}  # results of later pairs, and of the first one that computes the same

    def replaced(self, node: Node) -> Node:
        """FakeQuant in place of a DequantizeLinear that ends a pair; other nodes as they are."""
        if not _is(node, "DequantizeLinear"):
            return node
        first, clip = self.makers.get(node.inputs[0]), None
        if _is(first, "Clip"):  # narrower than the type, as PyTorch writes 7 bits
            assert first is not None
            first, clip = self.makers.get(first.inputs[0]), first
        if first is None or not _is(first, "QuantizeLinear"):
            return node
        scale, point = (self.shared(first, node, i) for i in (1, 2))
        if point is None and len(first.inputs) < 3 and len(node.inputs) < 3:
            point = np.zeros_like(scale, np.uint8)
        limits = None if point is None else self.limits(point.dtype, clip)
        where = self.granularity(first, node, scale, point)
        if scale is None or point is None or limits is None or where is None:
            return node
        names = f"{node.name}/scale", f"{node.name}/zero_point"
        shape = scale.shape if where else ()
        numbers = scale, np.broadcast_to(point, scale.shape).astype(np.float32)
        computed = first.inputs[0], shape, *(a.tobytes() for a in numbers), limits, *where.items()
        if (same := self.results.setdefault(computed, node.outputs[0])) != node.outputs[0]:
            # ONNX Runtime can write a pair for each reader: one result, and one mask for the gradient, serve all.
            self.equal[node.outputs[0]] = same
            return Node("Identity", "", 1, name=node.name, inputs=(same,), outputs=node.outputs)
        self.added |= {n: a.reshape(shape) for n, a in zip(names, numbers, strict=True)}
        bounds = {"quant_min": limits[0], "quant_max": limits[1], **where}
        outputs = node.outputs if where else (*node.outputs, f"{node.name}/inside")  # ONNX Runtime wants both
        return Node(
            FAKE_QUANT,
            MICROSOFT,
            1,
            name=node.name,
            inputs=(first.inputs[0], *names),
            outputs=outputs,
            attributes=bounds,
        )

    def rereading(self, node: Node) -> Node:
        """The node, reading the first of pairs that compute the same."""
        return replace(node, inputs=tuple(self.equal.get(n, n) for n in node.inputs))

    def shared(self, first: Node, second: Node, i: int) -> np.ndarray | None:
        """The constant that input `i` of both nodes is, under whatever names."""
        one, other = (self.constants.get(n.inputs[i]) if i < len(n.inputs) else None for n in (first, second))
        if one is None or other is None or one.dtype != other.dtype or not np.array_equal(one, other):
            return None
        return one

    def limits(self, dtype: np.dtype[Any], clip: Node | None) -> tuple[int, int] | None:
        """The smallest and the largest quantised number; None where that is not known."""
        if dtype.name not in QUANTIZED_TYPES:
            return None
        limits = [int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)]
        for i, name in enumerate(clip.inputs[1:] if clip is not None else ()):
            if name and (name not in self.constants or self.constants[name].size != 1):
                return None
            if name:
                bound = int(self.constants[name].ravel()[0])
                limits[i] = max(limits[0], bound) if i == 0 else min(limits[1], bound)
        return limits[0], limits[1]

    def granularity(
        self, first: Node, second: Node, scale: np.ndarray | None, point: np.ndarray | None
    ) -> Mapping[str, int] | None:
        """Attributes that say what the scales are for; none for a whole tensor, None where the pair is no FakeQuant."""
        kinds = [
            (
                n.attributes.get("axis", 1),
                n.attributes.get("block_size", 0),
                n.attributes.get("output_dtype", 0),
            )
            for n in (first, second)
        ]
        if scale is None or point is None or scale.dtype != np.float32:
            return None
        if scale.size == 1 and point.size == 1:
            return {}
        fits = point.shape in (scale.shape, ()) and kinds[0][:2] == kinds[1][:2]
        if not fits or any(output not in (0, 1) for *_, output in kinds[1:]):
            return None
        axis, block, _ = kinds[0]
        return {"axis": axis, "block_size": block} if block else {"axis": axis} if scale.ndim == 1 else None


def _notes(graph: Graph) -> Iterator[str]:
    """Notes on quantizers of values that depend on parameters and let no gradient through."""
    makers = {name: node for node in graph.nodes for name in node.outputs if name}
    real = {n for n, a in graph.initializers.items() if a.dtype.kind in "fV" and a.ndim > 0}
    for node in graph.nodes:
        if not _is(node, "QuantizeLinear", "DynamicQuantizeLinear"):
            continue
        pending, seen = [node.inputs[0]], set[str]()
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                pending += names_read(makers[name]) if name in makers else ()
        if seen & real:
            yield (
                f"node '{node.name}' ({node.op_type}): no gradient flows through it, and what stands before it does "
                f"not train by it. {_CURE}"
            )
