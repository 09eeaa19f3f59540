"""Tensors of eight-bit real numbers (float8), kept as the bytes that they are stored in: DequantizeLinear and Cast,
which read them, become minbuild:Dequantize with the table of their 256 values. No element type stands for them.
What QuantizeLinear rounds to such types is rounded in float, by minbuild:RoundFloat8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from minbuild.frontend.onnx.four_bits import linear_attributes, matrix_of
from minbuild.frontend.onnx.quantization_pairs import MICROSOFT
from minbuild.ir import ElementType, Graph, Node

FLOAT8: Mapping[int, Any] = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
}
_CURE = (
    "Numbers in float8 are read by DequantizeLinear or a Cast to float alone. Quantise to 8-bit integers instead, as "
    "quantize_static(..., activation_type=QuantType.QInt8, weight_type=QuantType.QInt8) of "
    "onnxruntime.quantization does, or leave them in float"
)


@dataclass(frozen=True)
class Float8:
    """A tensor of eight-bit real numbers: its bytes in its shape, and the type by ONNX's number."""

    codes: np.ndarray
    kind: int


def with_float8(graph: Graph, tensors: Mapping[str, Float8], findings: list[str]) -> Graph:
    """The graph whose nodes read `tensors`, by name, and round to such types in float. Other readers, and quantizers
    that do otherwise, are added to `findings`. `graph` is read already."""
    reading = _Reading(graph, tensors, findings)
    if not tensors and not any(reading.kind_of(node) for node in graph.nodes):
        return graph
    nodes = tuple(part for node in graph.nodes for part in reading.parts(node))
    if not findings and (returned := sorted({*tensors, *reading.rounded} & set(graph.outputs))):
        findings.append(f"output '{returned[0]}' is in float8. Return it in float")
    return replace(graph, nodes=nodes, initializers={**graph.initializers, **reading.arrays})


@dataclass
class _Reading:
    """One graph: the constants added to it, and types and numbers of axes, 0 where not known, of what quantizers make,
    which are real numbers here."""

    graph: Graph
    tensors: Mapping[str, Float8]
    findings: list[str]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    rounded: dict[str, int] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)

    def refuse(self, node: Node, problem: str) -> Iterator[Node]:
        self.findings.append(f"node '{node.name}' ({node.op_type}) {problem}")
        yield node

    def parts(self, node: Node) -> Iterator[Node]:
        """The nodes in place of `node`."""
        if kind := self.kind_of(node):
            return self.quantizer(node, kind)
        read = [n for n in node.inputs if n in self.tensors or n in self.rounded]
        if not read:
            return iter((node,))
        x = node.inputs[0]
        about = _name(self.rounded[read[0]] if read[0] in self.rounded else self.tensors[read[0]].kind)
        points = [n for n in node.inputs[2:3] if n]
        if node.title == "Cast" and x in read and node.attributes.get("to") == ElementType.FLOAT:
            if x in self.rounded:
                return iter((replace(node, op_type="Identity", attributes={}),))
            self.arrays[f"{x}/scale"] = np.ones((), np.float32)
            return iter(
                (_dequantize(replace(node, attributes={}), self.tensors[x], f"{x}/scale", self.arrays),)
            )
        if node.op_type != "DequantizeLinear" or node.domain not in ("", MICROSOFT) or x not in read:
            return self.refuse(node, f"reads '{read[0]}', which is in {about}. {_CURE}")
        if not self.has_scale(node):
            return self.refuse(node, "has scales that are no constants in float. Convert them to float")
        if any(n not in self.tensors or self.tensors[n].codes.any() for n in points):
            return self.refuse(
                node, f"has zero points other than 0, which {about} has none of. Leave them out"
            )
        if x in self.rounded:
            if not self.scale_of(node):
                return self.refuse(
                    node, "has several scales where its quantizer has one. Quantise by one scale"
                )
            return self.scaled(node, "Mul", x, node.outputs[0])
        if matrix_of(node, self.tensors[x].codes.shape) is None:
            return self.refuse(node, "has blocks along another axis than one of the last two of a matrix")
        return iter((_dequantize(node, self.tensors[x], node.inputs[1], self.arrays),))

    def kind_of(self, node: Node) -> int:
        """The type that a node makes, by its zero point or an attribute; 0 where it is none of these."""
        if node.op_type == "QuantizeLinear" and len(node.inputs) > 2 and node.inputs[2] in self.tensors:
            return self.tensors[node.inputs[2]].kind
        key = {"QuantizeLinear": "output_dtype", "Cast": "to"}.get(node.op_type)
        kind = node.attributes.get(key, 0) if key and node.domain in ("", MICROSOFT) else 0
        return int(kind) if kind in FLOAT8 else 0

    def has_scale(self, node: Node) -> bool:
        scale = self.graph.initializers.get(node.inputs[1])
        return scale is not None and scale.dtype == np.float32

    def quantizer(self, node: Node, kind: int) -> Iterator[Node]:
        """A quantizer as a division by its scale, and rounding to the numbers of the type."""
        points = [n for n in node.inputs[2:3] if n]
        if not node.attributes.get("saturate", 1) or node.attributes.get("precision", 0):
            return self.refuse(
                node, f"quantises to {_name(kind)} without saturation, or in another precision. {_CURE}"
            )
        if any(n not in self.tensors or self.tensors[n].codes.any() for n in points):
            return self.refuse(
                node, f"has zero points other than 0, which {_name(kind)} has none of. Leave them out"
            )
        if node.op_type == "QuantizeLinear" and not (self.has_scale(node) and self.scale_of(node)):
            return self.refuse(
                node,
                f"quantises to {_name(kind)} by scales that are no constants in float, or several for a value whose "
                "number of axes is not known. Quantise it by one scale",
            )
        if node.inputs[0] in self.tensors:
            return self.refuse(node, f"reads '{node.inputs[0]}', which is in float8. {_CURE}")
        self.rounded[node.outputs[0]], self.ranks[node.outputs[0]] = kind, self.rank_of(node.inputs[0])
        return self.rounding(node, kind)

    def rounding(self, node: Node, kind: int) -> Iterator[Node]:
        x, about = node.inputs[0], ml_dtypes.finfo(FLOAT8[kind])
        if node.op_type == "QuantizeLinear":
            x = f"{node.outputs[0]}/ratio"
            yield from self.scaled(node, "Div", node.inputs[0], x)
        numbers = {"least": about.smallest_normal, "most": about.max, "step": about.eps}
        yield replace(
            node,
            op_type="RoundFloat8",
            domain="minbuild",
            version=1,
            inputs=(x,),
            attributes={name: float(number) for name, number in numbers.items()},
        )

    def scaled(self, node: Node, operator: str, x: str, y: str) -> Iterator[Node]:
        """`y`, which is `x` multiplied or divided by the scale of `node`."""
        name = f"{node.name}/{operator}" if y != node.outputs[0] else node.name
        version = next((n.version for n in self.graph.nodes if not n.domain), 1)
        yield Node(operator, "", version, name, inputs=(x, self.scale_of(node)), outputs=(y,))

    def rank_of(self, x: str) -> int:
        """The number of axes of a constant or of what is quantised of one; 0 for others."""
        constant = self.graph.initializers.get(x)
        return self.ranks.get(x, 0) if constant is None else constant.ndim

    def scale_of(self, node: Node) -> str:
        """The scale of a quantizer, so that it broadcasts; "" where the number of axes is not known."""
        scale, name = self.graph.initializers[node.inputs[1]], f"{node.inputs[1]}/of {node.outputs[0]}"
        rank = self.rank_of(node.inputs[0])
        if scale.size == 1:
            self.arrays[name] = scale.reshape(())
        elif not rank or scale.ndim != 1 or node.attributes.get("block_size", 0):
            return ""
        else:
            axis = int(node.attributes.get("axis", 1)) % rank
            self.arrays[name] = scale.reshape([-1 if a == axis else 1 for a in range(rank)])
        return name


def _name(kind: int) -> str:
    """A type as ONNX names it."""
    return TensorProto.DataType.Name(kind).lower()


def _dequantize(node: Node, weights: Float8, scale: str, arrays: dict[str, np.ndarray]) -> Node:
    """The node that reads the bytes, which are added to `arrays` with the table of values."""
    found, codes = matrix_of(node, weights.codes.shape), weights.codes
    assert found is not None, "blocks are looked at before"
    table = f"values of {_name(weights.kind)}"
    arrays[node.inputs[0]] = codes
    arrays[table] = np.arange(256, dtype=np.uint8).view(FLOAT8[weights.kind]).astype(np.float32)
    attributes = {
        **{"bits": 8, "stride": found["columns"], "signed": 0, "high_first": 0, "zero": 0},
        **{"shape": codes.shape, "to": int(ElementType.FLOAT), **found, **linear_attributes(node)},
    }
    return replace(
        node,
        op_type="Dequantize",
        domain="minbuild",
        version=1,
        inputs=(node.inputs[0], scale, "", table),
        attributes=attributes,
    )
