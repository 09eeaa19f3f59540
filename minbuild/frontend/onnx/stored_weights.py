"""Weights in four bits and in float8, and rounding to float8, in ONNX's own operators, which runtimes for inference
have: what `four_bits` and `float8` made of them while a model was read, the other way round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
from onnx import TensorProto

from minbuild.frontend.onnx.float8 import FLOAT8
from minbuild.frontend.onnx.four_bits import FourBits
from minbuild.frontend.onnx.quantization_pairs import MICROSOFT, MINBUILD
from minbuild.frontend.onnx.subgraphs import graphs_in, names_read, with_graphs
from minbuild.ir import ElementType, Graph, Node

# The first opsets whose DequantizeLinear reads float8, and four bits or blocks.
_SINCE_FLOAT8, _SINCE_FOUR_BITS = 19, 21


def with_stored_weights(graph: Graph, opset: int) -> tuple[Graph, tuple[TensorProto, ...]]:
    """The graph with DequantizeLinear and Cast in place of nodes that `four_bits` and `float8` made; and the tensors
    that those read, which are initializers of the file beside those of the graph. `opset` is the version of ONNX's own
    operators in the graph."""
    writing = _Writing(opset)
    written = writing.graph(graph, {})
    return written, tuple(writing.tensors.values())


@dataclass
class _Writing:
    opset: int
    tensors: dict[str, TensorProto] = field(default_factory=dict)
    held: dict[str, np.ndarray] = field(default_factory=dict)  # arrays that are tensors now

    def graph(self, graph: Graph, around: Mapping[str, np.ndarray]) -> Graph:
        """A graph inside of others, whose constants are `around` it."""
        arrays = {**around, **graph.initializers}
        nodes: list[Node] = []
        for node in graph.nodes:
            if any(True for _ in graphs_in(node)):
                change = lambda inner: self.graph(inner, arrays)  # noqa: E731
                node = replace(node, attributes=with_graphs(node.attributes, change))
            nodes += self.written(node, graph, arrays)
        before, read = (_read(each, graph) for each in (graph.nodes, nodes))
        kept = {
            n: a
            for n, a in graph.initializers.items()
            if (n in read or n not in before) and a is not self.held.get(n)
        }
        return replace(graph, nodes=tuple(nodes), initializers=kept)

    def written(self, node: Node, graph: Graph, arrays: Mapping[str, np.ndarray]) -> Iterator[Node]:
        """The nodes in place of `node` of `graph`, which reads `arrays` among other values."""
        if node.title == f"{MINBUILD}:RoundFloat8":
            yield from self.casts(node)
        elif node.title == f"{MINBUILD}:Dequantize":
            yield self.dequantize_linear(node, graph, arrays) or node
        else:
            yield node

    def casts(self, node: Node) -> Iterator[Node]:
        """A Cast to the type that has the numbers of a RoundFloat8, and one back to float."""
        kind = next(kind for kind in FLOAT8 if _limits(kind) == _limits_of(node))
        rounded = f"{node.outputs[0]}/{TensorProto.DataType.Name(kind).lower()}"
        for name, to, x, y in (
            (f"{node.name}/Cast", kind, node.inputs[0], rounded),
            (node.name, int(ElementType.FLOAT), rounded, node.outputs[0]),
        ):
            yield Node("Cast", "", self.opset, name, inputs=(x,), outputs=(y,), attributes={"to": to})

    def dequantize_linear(self, node: Node, graph: Graph, arrays: Mapping[str, np.ndarray]) -> Node | None:
        """The DequantizeLinear that a Dequantize was; None where that is not known, or a name is taken."""
        codes, scale, zeros, table = (*node.inputs, "", "")[:4]
        block, scales = node.attributes.get("block_size"), _shape_of(scale, graph, arrays)
        has_zeros = bool(zeros or node.attributes["zero"])
        taken = any(n and self.held.get(n, arrays[n]) is not arrays[n] for n in (codes, zeros))
        if block is None or taken or (has_zeros and scales is None):
            return None
        kind = int(TensorProto.INT4 if node.attributes["signed"] else TensorProto.UINT4)
        since = _SINCE_FOUR_BITS
        if table:
            kind = next(k for k in FLOAT8 if np.array_equal(_values(k), arrays[table], equal_nan=True))
            since = since if block else _SINCE_FLOAT8
        shape = tuple(int(d) for d in node.attributes["shape"])
        self.add(codes, arrays[codes], _tensor(codes, kind, shape, np.asarray(arrays[codes])))
        point = zeros or f"{node.name}/zero_point"
        if has_zeros and scales is not None:
            points = np.asarray(arrays[zeros]) if zeros else np.full(scales, node.attributes["zero"])
            halves = FourBits.of((points & 15).astype(np.uint8)).data
            self.add(point, arrays.get(zeros, points), _tensor(point, kind, scales, halves))
        where = {} if scales == () else {"axis": node.attributes["axis"]}
        domain, version = ("", self.opset) if self.opset >= since else (MICROSOFT, 1)
        return replace(
            node,
            op_type="DequantizeLinear",
            domain=domain,
            version=version,
            inputs=(codes, scale, point) if has_zeros else (codes, scale),
            attributes={**where, "block_size": block} if block else where,
        )

    def add(self, name: str, array: np.ndarray, tensor: TensorProto) -> None:
        """A `tensor` in place of the `array` of that name."""
        self.tensors[name], self.held[name] = tensor, array


def _read(nodes: Iterable[Node], graph: Graph) -> set[str]:
    """The values that nodes of `graph` read, and its outputs."""
    return {name for node in nodes for name in names_read(node)} | set(graph.outputs)


def _shape_of(name: str, graph: Graph, arrays: Mapping[str, np.ndarray]) -> tuple[int, ...] | None:
    """The shape of a constant or of an input of fixed size; None for other values."""
    if name in arrays:
        return np.shape(arrays[name])
    shape = graph.inputs[name].shape if name in graph.inputs else None
    fixed = tuple(d for d in shape or () if isinstance(d, int))
    return None if shape is None or len(fixed) < len(shape) else fixed


def _tensor(name: str, kind: int, shape: tuple[int, ...], data: np.ndarray) -> TensorProto:
    return TensorProto(name=name, data_type=kind, dims=shape, raw_data=data.tobytes())


def _values(kind: int) -> np.ndarray:
    """The numbers that the 256 bytes of a float8 type stand for."""
    return np.arange(256, dtype=np.uint8).view(FLOAT8[kind]).astype(np.float32)


def _limits(kind: int) -> tuple[float, float]:
    """The smallest normal number and the largest, which no two of the types have both."""
    about = ml_dtypes.finfo(FLOAT8[kind])
    return float(about.smallest_normal), float(about.max)


def _limits_of(node: Node) -> tuple[float, float]:
    least, most = (np.float32(node.attributes[name]) for name in ("least", "most"))
    return float(least), float(most)
