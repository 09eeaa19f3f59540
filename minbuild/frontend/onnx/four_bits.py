"""Tensors of four-bit numbers: kept as the bytes that they are stored in, two numbers each, and read by Dequantize.

No operator here computes with such numbers, and no element type stands for them: DequantizeLinear, their only reader in
models, becomes minbuild:Dequantize, whose attributes say how the bytes are to be read. Those that QuantizeLinear makes
are a byte each, clipped to the range of four bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from onnx import TensorProto

from minbuild.frontend.onnx.quantization_pairs import MICROSOFT
from minbuild.ir import ElementType, Graph, Node

FOUR_BITS = (TensorProto.INT4, TensorProto.UINT4)


@dataclass(frozen=True)
class FourBits:
    """A tensor of four-bit numbers, signed or not; `data` has its bytes, the first of two numbers in the low half."""

    data: np.ndarray
    shape: tuple[int, ...]
    signed: bool

    @classmethod
    def of(cls, numbers: np.ndarray) -> FourBits:
        """Unsigned numbers, one in each byte of an array."""
        flat = numbers.ravel()
        halves = np.append(flat, np.zeros(flat.size % 2, np.uint8)).reshape(-1, 2)
        return cls(halves[:, 0] | halves[:, 1] << 4, numbers.shape, signed=False)

    @property
    def numbers(self) -> np.ndarray:
        """One byte for each number, signed ones in two's complement of four bits."""
        halves = np.stack((self.data & 15, self.data >> 4), 1).ravel()
        return np.ascontiguousarray(halves[: prod(self.shape)])


def with_four_bits(graph: Graph, four_bit: Mapping[str, FourBits], findings: list[str]) -> Graph:
    """The graph whose nodes read `four_bit`, tensors by name. What else than DequantizeLinear reads them is added to
    `findings`. `graph` is read already."""
    if not four_bit and not any(_points_of(node, four_bit) for node in graph.nodes):
        return graph
    arrays: dict[str, np.ndarray] = {}
    nodes = tuple(_rewritten(graph.nodes, four_bit, arrays, findings))
    if not findings and (returned := sorted(set(graph.outputs) & set(four_bit))):
        findings.append(f"output '{returned[0]}' is of four-bit numbers. Dequantise it")
    return replace(graph, nodes=nodes, initializers={**graph.initializers, **arrays})


def _rewritten(
    nodes: Iterable[Node],
    four_bit: Mapping[str, FourBits],
    arrays: dict[str, np.ndarray],
    findings: list[str],
) -> Iterator[Node]:
    points: dict[str, str] = {}  # of what four-bit quantizers make, by name
    for node in nodes:
        read = [n for n in node.inputs if n in four_bit]
        if quantizes_to := _points_of(node, four_bit):
            points[node.outputs[0]], parts = _quantizer(node, quantizes_to, arrays)
            yield from parts
            continue
        if node.title == "DequantizeLinear" and node.inputs[0] in points:
            yield replace(node, inputs=(*node.inputs[:2], points[node.inputs[0]]))
            continue
        if not read:
            yield node
            continue
        problem = "only DequantizeLinear reads them"
        dequantizes = node.op_type == "DequantizeLinear" and node.domain in ("", MICROSOFT)
        if dequantizes and node.inputs[0] in four_bit:
            weights = four_bit[node.inputs[0]]
            point = four_bit.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
            found = matrix_of(node, weights.shape)
            if found is None:
                problem = "its blocks are not along one of the last two axes of a matrix"
            elif len(node.inputs) > 2 and node.inputs[2] and point is None:
                problem = "its zero points are no constants"
            else:
                yield _dequantize(node, weights, point, found, arrays)
                continue
        findings.append(
            f"node '{node.name}' ({node.op_type}) reads the four-bit numbers '{read[0]}': {problem}"
        )
        yield node


def _points_of(node: Node, four_bit: Mapping[str, FourBits]) -> FourBits | None:
    """The zero points of a quantizer to four bits, which it reads or has a type of; None for other nodes."""
    if node.title != "QuantizeLinear" or not four_bit.keys().isdisjoint(node.inputs[:2]):
        return None
    if len(node.inputs) > 2 and node.inputs[2]:
        return four_bit.get(node.inputs[2])
    kind = node.attributes.get("output_dtype", 0)
    return FourBits(np.zeros(1, np.uint8), (), kind == TensorProto.INT4) if kind in FOUR_BITS else None


def _quantizer(node: Node, point: FourBits, arrays: dict[str, np.ndarray]) -> tuple[str, tuple[Node, Node]]:
    """The name of its zero point in bytes; and the quantizer to bytes with a Clip behind it."""
    kind, low, high = (np.dtype(np.int8), -8, 7) if point.signed else (np.dtype(np.uint8), 0, 15)
    numbers = point.numbers.reshape(point.shape).view(kind)
    made, wide = node.outputs[0], f"{node.outputs[0]}/bytes"
    names = [f"{made}/{part}" for part in ("zero_point", "low", "high")]
    # A negative number of four bits becomes one of eight.
    signs = (numbers ^ kind.type(8)) - kind.type(8) if point.signed else numbers
    arrays |= zip(names, (signs, np.array(low, kind), np.array(high, kind)), strict=True)
    where = {n: v for n, v in node.attributes.items() if n != "output_dtype"}
    inputs = (*node.inputs[:2], names[0])
    quantize = replace(node, inputs=inputs, outputs=(wide,), attributes=where)
    clip = Node("Clip", "", node.version, f"{node.name}/Clip", (wide, *names[1:]), outputs=(made,))
    return names[0], (quantize, clip)


def matrix_of(node: Node, shape: tuple[int, ...]) -> dict[str, int] | None:
    """Rows and columns of the matrix that weights of `shape` are for the DequantizeLinear `node`, and of a block that
    shares a scale; None where the blocks do not fit the kernels."""
    axis = int(node.attributes.get("axis", 1))
    axis = axis % len(shape) if len(shape) > 1 else 0
    block = int(node.attributes.get("block_size", 0))
    if not block:  # of a size that lowering finds out from the scale
        split = axis if 0 < axis < len(shape) else min(1, len(shape) - 1)
        rows, columns = prod(shape[:split]), prod(shape[split:])
        blocks = (1, columns if split else 1) if axis == 0 else (rows, prod(shape[axis + 1 :]))
        return {"rows": rows, "columns": columns, "row_block": blocks[0], "column_block": blocks[1]}
    if axis == len(shape) - 1:
        found = {"rows": prod(shape[:-1]), "columns": shape[-1], "row_block": 1, "column_block": block}
    elif axis == len(shape) - 2 and (prod(shape[:axis]) == 1 or shape[axis] % block == 0):
        found = {"rows": prod(shape[:-1]), "columns": shape[-1], "row_block": block, "column_block": 1}
    else:
        return None
    return found


def linear_attributes(node: Node) -> dict[str, int]:
    """The attributes of the DequantizeLinear `node`, which its Dequantize keeps for files that are written."""
    return {
        "axis": int(node.attributes.get("axis", 1)),
        "block_size": int(node.attributes.get("block_size", 0)),
    }


def _dequantize(
    node: Node,
    weights: FourBits,
    point: FourBits | None,
    found: Mapping[str, int],
    arrays: dict[str, np.ndarray],
) -> Node:
    numbers = np.zeros(1, np.uint8) if point is None else point.numbers
    same = np.unique(numbers).size == 1
    inputs = [node.inputs[0], node.inputs[1]]
    arrays[node.inputs[0]] = weights.data
    if not same:
        arrays[node.inputs[2]] = numbers
        inputs.append(node.inputs[2])
    signed = int(weights.signed)
    zero = int(numbers[0])
    attributes = {
        "bits": 4,
        **found,
        "stride": found["columns"],
        "signed": signed,
        "high_first": 0,
        "zero": zero if same else 0,
        "shape": weights.shape,
        "to": int(ElementType.FLOAT),
        **linear_attributes(node),
    }
    return replace(
        node, op_type="Dequantize", domain="minbuild", version=1, inputs=tuple(inputs), attributes=attributes
    )
