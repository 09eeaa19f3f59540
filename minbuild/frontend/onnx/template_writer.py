"""ONNX files with holes: everything but the elements of some initializers, which whoever writes the file fills in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from onnx import TensorProto

from minbuild.frontend.onnx.writer import model_proto
from minbuild.ir import Graph, Node, TensorType

Piece = bytes | str  # of a file: its bytes, or the tensor whose bytes come here

# Field numbers of onnx.proto, each with protobuf's type number of bytes, 2.
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_DATA = bytes([7 << 3 | 2]), bytes([5 << 3 | 2]), bytes([9 << 3 | 2])


def opsets_imported(nodes: Iterable[Node]) -> dict[str, int]:
    """The versions of the domains that the nodes of a file were read with."""
    return {node.domain: node.version for node in nodes}


def template_file(
    graph: Graph,
    types: Mapping[str, TensorType],
    opsets: Mapping[str, int],
    holes: Mapping[str, TensorType],
    tensors: Sequence[TensorProto] = (),
) -> tuple[Piece, ...]:
    """The file that `onnx_writer.write_graph` would write of a graph with further initializers, in pieces. Those are
    `holes`: their shapes are fixed, and where they are named belong their elements, row-major and little-endian.
    `graph` is written with the `types` of its values, for the versions `opsets` of domains; `tensors` are initializers
    of types that no element type stands for."""
    model = model_proto(graph, types, opsets)
    model.graph.initializer.extend(tensors)
    rest = model.graph.SerializeToString(deterministic=True)
    model.ClearField("graph")
    length, pieces = len(rest), list[Piece]()
    for name, tensor in holes.items():
        dims = [d for d in tensor.shape or () if isinstance(d, int)]
        size = prod(dims) * tensor.element.size
        head = TensorProto(name=name, dims=dims, data_type=int(tensor.element)).SerializeToString()
        head += _TENSOR_DATA + _varint(size)
        before = _GRAPH_INITIALIZER + _varint(len(head) + size) + head
        pieces += [before, name]
        length += len(before) + size
    start = model.SerializeToString(deterministic=True) + _MODEL_GRAPH + _varint(length) + rest
    return (start + pieces[0], *pieces[1:]) if pieces and isinstance(pieces[0], bytes) else (start,)


def _varint(number: int) -> bytes:
    """A number as protobuf writes it: seven bits a byte, the lowest first."""
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])
