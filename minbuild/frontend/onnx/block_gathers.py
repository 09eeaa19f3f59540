"""GatherBlockQuantized as a DequantizeLinear of its table and a Gather: what reads codes in place does so for both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from minbuild.frontend.onnx.four_bits import FourBits
from minbuild.frontend.onnx.quantization_pairs import MICROSOFT
from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import Graph, Node

_TITLE = f"{MICROSOFT}:GatherBlockQuantized"
_OPSET = 13  # of a Gather in a graph without operators of ONNX's own
_BLOCK = 128  # the default size


def with_plain_gathers(
    graph: Graph, four_bit: Mapping[str, FourBits]
) -> tuple[Graph, Mapping[str, FourBits]]:
    """The graph with the two nodes in place of each GatherBlockQuantized of a constant table; and `four_bit`, its
    tensors of four-bit numbers by name, with those that are stored two to a uint8."""
    if not any(node.title == _TITLE for node in graph.nodes):
        return graph, four_bit
    opset = next((node.version for node in graph.nodes if not node.domain), _OPSET)
    tables = _Tables(graph, four_bit)
    nodes = tuple(part for node in graph.nodes for part in tables.parts(node, opset))
    arrays = {n: a for n, a in graph.initializers.items() if n not in tables.four_bit}
    return replace(graph, nodes=nodes, initializers={**arrays, **tables.added}), tables.four_bit


class _Tables:
    def __init__(self, graph: Graph, four_bit: Mapping[str, FourBits]) -> None:
        self.arrays = graph.initializers
        self.read = {n for node in graph.nodes if node.title != _TITLE for n in names_read(node)}
        self.four_bit = dict(four_bit)
        self.added: dict[str, np.ndarray] = {}

    def parts(self, node: Node, opset: int) -> Iterator[Node]:
        """Both nodes; the node itself where it is no such gather, or its table is none that is known."""
        operands = self.operands(node) if node.title == _TITLE else ()
        if not operands:
            yield node
            return
        real = f"{node.outputs[0]}/table"
        blocks = {
            "axis": node.attributes.get("quantize_axis", 1),
            "block_size": node.attributes.get("block_size", _BLOCK),
        }
        yield replace(node, op_type="DequantizeLinear", inputs=operands, outputs=(real,), attributes=blocks)
        axis = {"axis": node.attributes.get("gather_axis", 0)}
        inputs, name = (real, node.inputs[1]), f"{node.name}/Gather"
        yield Node("Gather", "", opset, name, inputs, outputs=node.outputs, attributes=axis)

    def operands(self, node: Node) -> tuple[str, ...]:
        """Table, scales and zero points of a DequantizeLinear; none where it would be another operator."""
        table, _, scales, *points = node.inputs
        point = points[0] if points else ""
        if table in self.four_bit and "bits" not in node.attributes:
            return tuple(filter(None, (table, scales, point)))
        codes, scale, zeros = (self.arrays.get(n) for n in (table, scales, point))
        bits = node.attributes.get("bits", 4)
        if codes is None or scale is None or codes.dtype != np.uint8 or codes.ndim != 2 or bits not in (4, 8):
            return ()
        if point and zeros is None:
            return ()
        blocks = np.asarray(scale).shape
        zeros = np.full(blocks, 1 << bits - 1, np.uint8) if zeros is None else np.asarray(zeros)
        own = f"{node.outputs[0]}/zero_points"
        if bits == 8:
            self.added[own] = zeros
            return table, scales, own
        numbers = FourBits(np.asarray(codes).ravel(), (codes.shape[0], codes.shape[1] * 2), signed=False)
        table = f"{table}/numbers" if table in self.read else table  # by operators that read bytes
        self.four_bit[table] = numbers
        self.four_bit[own] = FourBits.of(_halves(zeros)[:, : blocks[1]] if point else zeros)
        return table, scales, own


def _halves(packed: np.ndarray) -> np.ndarray:
    """The numbers of rows of bytes, two in each."""
    return np.stack((packed & 15, packed >> 4), 2).reshape(len(packed), -1)
