"""Graphs into ONNX files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from minbuild.frontend.onnx.large_files import in_pieces, mark_external, without_elements
from minbuild.ir import ElementType, Graph, Node, TensorType
from minbuild.ir.pieces import LEAST, LEAST_IN_PIECES, FileContent, Pieces

LARGEST_FILE = 2**31 - 2**20  # protobuf's limit, with room for what is not tensors
LEAST_OUTSIDE = 1024  # bytes of a tensor that is worth a place outside of the file
_ALIGNED = 4096  # of tensors in a file of their own: what mapping into memory wants
IR_VERSION = 8  # the newest that ONNX Runtime 1.19.2's training tools write for models


def write_graph(graph: Graph, types: Mapping[str, TensorType], opsets: Mapping[str, int]) -> bytes:
    """The ONNX file of a graph. `types` are those of its outputs and of what its nodes compute, as far as known;
    `opsets` are the versions of the domains it imports. The same graph gives the same bytes. `graph` may hold graphs
    in its nodes."""
    return bytes(model_proto(graph, types, opsets).SerializeToString(deterministic=True))


def write_files(
    graph: Graph,
    types: Mapping[str, TensorType],
    opsets: Mapping[str, int],
    prefix: str = "",
    largest: int = LARGEST_FILE,
) -> dict[str, FileContent]:
    """The ONNX file of a graph as `write_graph` writes it, by name, with `prefix` before the graph's own; where its
    constants take more than `largest` bytes, they stand in a second file beside it. Large files come in pieces.
    `graph`, `types` and `opsets` as of `write_graph`."""
    name = prefix + graph.source
    if bytes_of(graph) < min(largest, LEAST_IN_PIECES):
        return {name: write_graph(graph, types, opsets)}
    if bytes_of(graph) <= largest:
        return {name: _in_pieces(graph, types, opsets)}
    beside = DataFile(f"{name}.data")
    proto = model_proto(beside.without_large(graph), types, opsets)
    beside.fill(proto.graph, graph)
    return {name: bytes(proto.SerializeToString(deterministic=True)), beside.name: beside.content()}


def bytes_of(graph: Graph) -> int:
    """The bytes of a graph's constants."""
    return sum(np.asarray(array).nbytes for array in graph.initializers.values())


@dataclass
class DataFile:
    """A file beside a model with the elements of tensors that would make the model too large."""

    name: str
    data: Pieces = field(default_factory=Pieces)

    def content(self) -> FileContent:
        """The file, in pieces if it is large."""
        return self.data if len(self.data) >= LEAST_IN_PIECES else bytes(self.data)

    def without_large(self, graph: Graph) -> Graph:
        """The graph with those constants only that stay in the model."""
        kept = {n: a for n, a in graph.initializers.items() if np.asarray(a).nbytes < LEAST_OUTSIDE}
        return replace(graph, initializers=kept)

    def fill(self, proto: GraphProto, graph: Graph) -> None:
        """Adds the other constants of `graph` to `proto`, their elements to this file."""
        for name, array in graph.initializers.items():
            if np.asarray(array).nbytes >= LEAST_OUTSIDE:
                self.data.align(_ALIGNED)
                proto.initializer.append(_external(name, np.asarray(array), self.name, len(self.data)))
                self.data.append(np.asarray(array))


def _in_pieces(graph: Graph, types: Mapping[str, TensorType], opsets: Mapping[str, int]) -> Pieces:
    """The bytes of `write_graph`, with large constants as they are."""
    arrays = {n: np.asarray(a) for n, a in graph.initializers.items()}
    large = {n: a for n, a in arrays.items() if a.nbytes >= LEAST}
    small = {n: np.empty(0, np.float32) if n in large else a for n, a in arrays.items()}
    return in_pieces(model_proto(replace(graph, initializers=small), types, opsets), large)


def _external(name: str, array: np.ndarray, file: str, offset: int) -> TensorProto:
    """A tensor whose bytes stand in another file."""
    tensor = without_elements(name, array)
    mark_external(tensor, file, offset, array.nbytes)
    return tensor


def model_proto(graph: Graph, types: Mapping[str, TensorType], opsets: Mapping[str, int]) -> ModelProto:
    """The ONNX model of a graph, as `write_graph` writes it. `graph`, `types` and `opsets` as of `write_graph`."""
    inputs = [_value(name, tensor) for name, tensor in graph.inputs.items()]
    inputs += [_sequence(name, element) for name, element in graph.sequences.items()]
    proto = helper.make_graph(
        [node_proto(node) for node in graph.nodes],
        graph.source.rpartition(".")[0] or "graph",
        inputs,
        [_value(name, types[name]) for name in graph.outputs],
        [
            numpy_helper.from_array(np.asarray(array, order="C"), name)
            for name, array in graph.initializers.items()
        ],
        value_info=_computed(graph, types),
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in sorted(opsets.items())]
    model: ModelProto = helper.make_model(proto, opset_imports=imports, producer_name="minbuild")
    model.ir_version = IR_VERSION
    return model


def append_to_model(
    model: ModelProto,
    nodes: Iterable[Node],
    inputs: Mapping[str, TensorType],
    initializers: Mapping[str, np.ndarray],
) -> None:
    """Adds these to a model in place, and imports of the domains that the nodes are of. `model` is an
    onnx.ModelProto; `nodes`, `inputs` with their types and `initializers` with their values come behind its own."""
    nodes = tuple(nodes)
    model.graph.node.extend(node_proto(node) for node in nodes)
    model.graph.input.extend(_value(name, tensor) for name, tensor in inputs.items())
    model.graph.initializer.extend(tensor_proto(name, array) for name, array in initializers.items())
    imported = {entry.domain for entry in model.opset_import}
    for domain, version in opsets_of(nodes, 0).items():
        if domain and domain not in imported:
            model.opset_import.append(helper.make_opsetid(domain, version))


def empty_model(opset: int) -> ModelProto:
    """A model without nodes."""
    return model_proto(
        Graph("model.onnx", nodes=(), inputs={}, sequences={}, outputs=(), initializers={}), {}, {"": opset}
    )


def _computed(graph: Graph, types: Mapping[str, TensorType]) -> list[ValueInfoProto]:
    """The values between inputs and outputs. ONNX Runtime's pooling gradients allocate what is declared here, and
    crash where nothing is."""
    told = {*graph.outputs, *graph.inputs, *graph.initializers}
    names = [n for node in graph.nodes for n in node.outputs if n and n not in told and n in types]
    return [_value(name, types[name]) for name in names]


def tensor_proto(name: str, array: np.ndarray | None) -> TensorProto:
    """An array as ONNX writes it; None is empty."""
    return numpy_helper.from_array(np.asarray([] if array is None else array, order="C"), name)


def set_initializers(model: ModelProto, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Puts arrays into the initializers of these names, in place, and returns the names that the model lacks."""
    there = {tensor.name: tensor for tensor in model.graph.initializer}
    for name in arrays:
        if name in there:
            there[name].CopyFrom(tensor_proto(name, arrays[name]))
    return [name for name in arrays if name not in there]


def opsets_of(nodes: Iterable[Node], default: int) -> dict[str, int]:
    """The versions of the domains that nodes use; `default` is that of ONNX's own operators."""
    return {"": default, **{n.domain: n.version for n in nodes if n.domain}}


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
            numpy_helper.from_array(np.asarray(array, order="C"), name)
            for name, array in graph.initializers.items()
        ],
    )


def _value(name: str, tensor: TensorType) -> ValueInfoProto:
    shape = None if tensor.shape is None else [d if isinstance(d, int) else str(d) for d in tensor.shape]
    return helper.make_tensor_value_info(name, int(tensor.element), shape)


def _sequence(name: str, element: ElementType) -> ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, int(element), None)


def with_overridable(model: bytes, names: Iterable[str]) -> bytes:
    """The ONNX file with these initializers as inputs too: a caller may give others in their place."""
    proto = ModelProto.FromString(model)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name in names:
        tensor = tensors[name]
        proto.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    return bytes(proto.SerializeToString(deterministic=True))
