"""A model in double precision: the same graph, every float in it a double. For field_models.py."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

TYPES = frozenset({("Cast", "to")})  # attributes that name a type, beside every `dtype`
TYPE = "dtype"


def write_double(path: Path, place: Path) -> None:
    """Writes the model at `path` to `place`, its floats widened."""
    model = onnx.load(path)
    _widen_graph(model.graph)
    for function in model.functions:
        _widen_nodes(function.node)
        _widen_values(function.value_info)
    onnx.save(model, place)


def widened(array: np.ndarray) -> np.ndarray:
    """Floats as doubles; all else as it is."""
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _widen_graph(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for values in (graph.input, graph.output, graph.value_info):
        _widen_values(values)
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Iterable[NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif attribute.type == AttributeProto.GRAPH:
                _widen_graph(attribute.g)
            elif _names_float(node, attribute):
                attribute.i = TensorProto.DOUBLE
        _widen_scalars(node)


def _names_float(node: NodeProto, attribute: AttributeProto) -> bool:
    names_type = attribute.name == TYPE or (node.op_type, attribute.name) in TYPES
    return names_type and attribute.type == AttributeProto.INT and attribute.i == TensorProto.FLOAT


def _widen_scalars(node: NodeProto) -> None:
    """Constants written as attributes `value_float` and `value_floats` have no type of their own."""
    for attribute in node.attribute if node.op_type == "Constant" else ():
        if attribute.name in ("value_float", "value_floats"):
            data = list(attribute.floats) if attribute.name.endswith("s") else attribute.f
            tensor = numpy_helper.from_array(np.array(data, np.float64))
            attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(widened(numpy_helper.to_array(tensor)), tensor.name))


def _widen_values(values: Iterable[ValueInfoProto]) -> None:
    for value in values:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
