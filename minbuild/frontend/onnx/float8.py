"""Tensors of eight-bit real numbers (float8), kept as the bytes that they are stored in: DequantizeLinear and Cast,
which read them, become minbuild:Dequantize with the table of their 256 values. No element type stands for them, and
nothing computes with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from minbuild.frontend.onnx.four_bits import matrix_of
from minbuild.frontend.onnx.quantization_pairs import MICROSOFT
from minbuild.ir import ElementType, Graph, Node

FLOAT8: Mapping[int, Any] = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
}
_CURE = (
    "Only constant weights are read in float8, by DequantizeLinear or a Cast to float. Quantise activations to 8-bit "
    "integers, such as quantize_static(..., activation_type=QuantType.QInt8, weight_type=QuantType.QInt8) of "
    "onnxruntime.quantization does, or leave them in float"
)


@dataclass(frozen=True)
class Float8:
    """A tensor of eight-bit real numbers: its bytes in its shape, and the type by ONNX's number."""

    codes: np.ndarray
    kind: int

    @property
    def name(self) -> str:
        """The type as ONNX names it."""
        return TensorProto.DataType.Name(self.kind).lower()


def with_float8(graph: Graph, tensors: Mapping[str, Float8], findings: list[str]) -> Graph:
    """The graph whose nodes read `tensors`, by name. Other readers, and quantizers to such types, are added to
    `findings`. `graph` is read already."""
    if not tensors and not any(_quantizes(node, tensors) for node in graph.nodes):
        return graph
    arrays: dict[str, np.ndarray] = {}
    nodes = tuple(_rewritten(node, graph, tensors, arrays, findings.append) for node in graph.nodes)
    if not findings and (returned := sorted(set(graph.outputs) & set(tensors))):
        findings.append(f"output '{returned[0]}' is in {tensors[returned[0]].name}. Return it in float")
    return replace(graph, nodes=nodes, initializers={**graph.initializers, **arrays})


def _rewritten(
    node: Node,
    graph: Graph,
    tensors: Mapping[str, Float8],
    arrays: dict[str, np.ndarray],
    refuse: Callable[[str], None],
) -> Node:
    where = f"node '{node.name}' ({node.op_type})"
    if kind := _quantizes(node, tensors):
        refuse(f"{where} quantises to {TensorProto.DataType.Name(kind).lower()}. {_CURE}")
        return node
    read = [n for n in node.inputs if n in tensors]
    if not read:
        return node
    weights, about = tensors.get(node.inputs[0]), tensors[read[0]].name
    scale = graph.initializers.get(node.inputs[1]) if len(node.inputs) > 1 else None
    points = [n for n in node.inputs[2:3] if n]
    if node.title == "Cast" and weights is not None and node.attributes.get("to") == ElementType.FLOAT:
        name = f"{node.inputs[0]}/scale"
        arrays[name] = np.ones((), np.float32)
        return _dequantize(replace(node, attributes={}), weights, name, arrays)
    if node.op_type != "DequantizeLinear" or node.domain not in ("", MICROSOFT) or weights is None:
        refuse(f"{where} reads '{read[0]}', which is in {about}. {_CURE}")
    elif scale is None or scale.dtype != np.float32:
        refuse(f"{where} has scales that are no constants in float. Convert them to float")
    elif any(n not in tensors or tensors[n].codes.any() for n in points):
        refuse(f"{where} has zero points other than 0, which {about} has none of. Leave them out")
    elif matrix_of(node, weights.codes.shape) is None:
        refuse(f"{where} has blocks along another axis than one of the last two of a matrix")
    else:
        return _dequantize(node, weights, node.inputs[1], arrays)
    return node


def _quantizes(node: Node, tensors: Mapping[str, Float8]) -> int:
    """The type that a node makes, by its zero point or an attribute; 0 where it is none of these."""
    if node.op_type == "QuantizeLinear" and len(node.inputs) > 2 and node.inputs[2] in tensors:
        return tensors[node.inputs[2]].kind
    key = {"QuantizeLinear": "output_dtype", "Cast": "to"}.get(node.op_type)
    kind = node.attributes.get(key, 0) if key and node.domain in ("", MICROSOFT) else 0
    return int(kind) if kind in FLOAT8 else 0


def _dequantize(node: Node, weights: Float8, scale: str, arrays: dict[str, np.ndarray]) -> Node:
    """The node that reads the bytes, which are added to `arrays` with the table of values."""
    found, codes = matrix_of(node, weights.codes.shape), weights.codes
    assert found is not None, "blocks are looked at before"
    table = f"values of {weights.name}"
    arrays[node.inputs[0]] = codes
    arrays[table] = np.arange(256, dtype=np.uint8).view(FLOAT8[weights.kind]).astype(np.float32)
    attributes = {
        **{"bits": 8, "stride": found["columns"], "signed": 0, "high_first": 0, "zero": 0},
        **{"shape": codes.shape, "to": int(ElementType.FLOAT), **found},
    }
    return replace(
        node,
        op_type="Dequantize",
        domain="minbuild",
        version=1,
        inputs=(node.inputs[0], scale, "", table),
        attributes=attributes,
    )
