"""Graphs into ONNX files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from minbuild.model import ElementType, Graph, Node, TensorType

IR_VERSION = 8  # the newest that ONNX Runtime 1.19.2's training tools write for models


def write_graph(graph: Graph, outputs: Mapping[str, TensorType], opsets: Mapping[str, int]) -> bytes:
    """The ONNX file of a graph. `outputs` are the types of its outputs, `opsets` the versions of the domains it
    imports. The same graph gives the same bytes."""
    inputs = [_value(name, tensor) for name, tensor in graph.inputs.items()]
    inputs += [_sequence(name, element) for name, element in graph.sequences.items()]
    proto = helper.make_graph(
        [node_proto(node) for node in graph.nodes],
        graph.source.rpartition(".")[0] or "graph",
        inputs,
        [_value(name, outputs[name]) for name in graph.outputs],
        [
            numpy_helper.from_array(np.ascontiguousarray(array), name)
            for name, array in graph.initializers.items()
        ],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in sorted(opsets.items())]
    model: ModelProto = helper.make_model(proto, opset_imports=imports, producer_name="minbuild")
    model.ir_version = IR_VERSION
    return bytes(model.SerializeToString(deterministic=True))


def opsets_of(nodes: Iterable[Node], default: int) -> dict[str, int]:
    """The versions of the domains that nodes use; `default` is that of ONNX's own operators."""
    return {"": default, **{n.domain: 1 for n in nodes if n.domain}}


def node_proto(node: Node) -> NodeProto:
    """A node as ONNX writes it."""
    proto = NodeProto(op_type=node.op_type, domain=node.domain, name=node.name)
    proto.input.extend(node.inputs)
    proto.output.extend(node.outputs)
    proto.attribute.extend(_attribute(n, v) for n, v in sorted(node.attributes.items()) if v is not None)
    return proto


def _attribute(name: str, value: Any) -> AttributeProto:
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, numpy_helper.from_array(value))
    if isinstance(value, Graph):
        return helper.make_attribute(name, _subgraph(value))
    if isinstance(value, tuple) and not value:
        return AttributeProto(name=name, type=AttributeProto.INTS)
    return helper.make_attribute(name, value)


def _subgraph(graph: Graph) -> GraphProto:
    """A graph inside of a node; what its inputs are follows from where they come from."""
    return helper.make_graph(
        [node_proto(node) for node in graph.nodes],
        "graph",
        [helper.make_empty_tensor_value_info(name) for name in graph.inputs],
        [helper.make_empty_tensor_value_info(name) for name in graph.outputs],
        [
            numpy_helper.from_array(np.ascontiguousarray(array), name)
            for name, array in graph.initializers.items()
        ],
    )


def _value(name: str, tensor: TensorType) -> ValueInfoProto:
    shape = None if tensor.shape is None else [d if isinstance(d, int) else str(d) for d in tensor.shape]
    return helper.make_tensor_value_info(name, int(tensor.element), shape)


def _sequence(name: str, element: ElementType) -> ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, int(element), None)
