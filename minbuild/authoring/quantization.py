"""Quantisation-aware training: pairs of QuantizeLinear and DequantizeLinear as FakeQuant, through which gradients flow.

ONNX Runtime's training tools do the same: rounding counts as the identity within the range of the quantised type
(straight-through estimator), and nothing flows where a number is cut off.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import Graph, Node
from minbuild.ops.core.graph_builder import MICROSOFT

_TYPES = ("int8", "uint8", "int16", "uint16")


def with_fake_quantization(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph with FakeQuant nodes in place of pairs with one constant scale, and a note on every other pair."""
    makers = {name: node for node in graph.nodes for name in node.outputs if name}
    constants = {n: np.asarray(a) for n, a in graph.initializers.items()}
    for node in graph.nodes:
        if (
            node.op_type == "Constant"
            and not node.domain
            and isinstance(node.attributes.get("value"), np.ndarray)
        ):
            constants[node.outputs[0]] = node.attributes["value"]
    nodes: list[Node] = []
    added: dict[str, np.ndarray] = {}
    notes: list[str] = []
    for node in graph.nodes:
        first = makers.get(node.inputs[0]) if _is(node, "DequantizeLinear") else None
        if first is None or not _is(first, "QuantizeLinear"):
            nodes.append(node)
            continue
        made = _fake_quant(first, node, constants, added)
        if made is None:
            notes.append(
                f"node '{first.name}' (QuantizeLinear) has no single constant scale and zero point that its "
                "DequantizeLinear shares: no gradient flows through it, and what stands before it does not train by "
                "it. Quantise per tensor to train through it."
            )
        nodes.append(made or node)
    read = {name for node in nodes for name in names_read(node)} | set(graph.outputs)
    kept = tuple(n for n in nodes if not _is(n, "QuantizeLinear") or not read.isdisjoint(n.outputs))
    if not notes and not added:
        return graph, ()
    return replace(graph, nodes=kept, initializers={**graph.initializers, **added}), tuple(notes)


def _is(node: Node, op_type: str) -> bool:
    return node.op_type == op_type and not node.domain


def _fake_quant(
    first: Node, second: Node, constants: dict[str, np.ndarray], added: dict[str, np.ndarray]
) -> Node | None:
    """The node for a pair; its scale and zero point, as real numbers, go to `added`. None where the pair is none that
    FakeQuant stands for."""
    scale, point = (_shared(first, second, i, constants) for i in (1, 2))
    if scale is None or scale.size != 1 or scale.dtype != np.float32:
        return None
    if point is None:
        if len(first.inputs) > 2 or len(second.inputs) > 2:
            return None
        point = np.zeros((), np.uint8)
    if point.size != 1 or point.dtype.name not in _TYPES:
        return None
    names = f"{second.name}/scale", f"{second.name}/zero_point"
    added |= {names[0]: scale.reshape(()), names[1]: point.reshape(()).astype(np.float32)}
    limits = np.iinfo(point.dtype)
    bounds = {"quant_min": int(limits.min), "quant_max": int(limits.max)}
    return Node("FakeQuant", MICROSOFT, 1, second.name, (first.inputs[0], *names), second.outputs, bounds)


def _shared(first: Node, second: Node, i: int, constants: dict[str, np.ndarray]) -> np.ndarray | None:
    """The constant that input `i` of both nodes is, under whatever names."""
    if i >= len(first.inputs) or i >= len(second.inputs):
        return None
    one, other = constants.get(first.inputs[i]), constants.get(second.inputs[i])
    if (
        one is None
        or other is None
        or one.dtype != other.dtype
        or not np.array_equal(one.ravel(), other.ravel())
    ):
        return None
    return one
