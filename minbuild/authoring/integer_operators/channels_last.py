"""Operators on quantised images whose channels are the last axis, which ONNX Runtime's optimizer writes, as the usual
ones between transposes. Those that undo each other go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from minbuild.frontend.onnx.quantization_pairs import MICROSOFT
from minbuild.ir import Graph, Node

_WEIGHTS = 3  # the input of QLinearConv
_LEAST_RANK = 3  # of images
_POOLS = {  # by title, the operator and domain with channels first
    f"{MICROSOFT}:QLinearAveragePool": ("QLinearAveragePool", MICROSOFT),
    f"{MICROSOFT}:NhwcMaxPool": ("MaxPool", ""),
}
_SAME_RANK = frozenset({"DequantizeLinear", "Identity", "QLinearAdd", "QLinearConcat", "QLinearLeakyRelu"})
_SAME_RANK |= {"QLinearMul", "QLinearSigmoid", "QuantizeLinear", "Relu", "Clip", "QLinearGlobalAveragePool"}


def with_channels_first(graph: Graph, opset: int) -> Graph:
    """The graph with channels before the positions of images. Nodes whose number of axes is not known stay. `opset` is
    the version of ONNX's own operators in `graph`."""
    if not any(_is_last(node) for node in graph.nodes):
        return graph
    images = _Images(graph, opset)
    return replace(graph, nodes=tuple(part for node in graph.nodes for part in images.parts(node)))


def _is_last(node: Node) -> bool:
    return node.op_type == "NhwcMaxPool" or bool(node.attributes.get("channels_last", 0))


@dataclass
class _Images:
    """One graph being rewritten."""

    graph: Graph
    opset: int
    first: dict[str, str] = field(
        default_factory=dict
    )  # by value with channels last, the same with channels first

    def __post_init__(self) -> None:
        self.maker = {n: node for node in self.graph.nodes for n in node.outputs if n}

    def parts(self, node: Node) -> Iterator[Node]:
        """The nodes in place of `node`."""
        if node.title == "Transpose" and self.turned(node):
            yield replace(node, op_type="Identity", inputs=(self.turned(node),), attributes={})
            return
        rank = self.rank(node.outputs[0]) if _is_last(node) else 0
        if rank < _LEAST_RANK:
            if node.title == "Transpose":
                perm = tuple(node.attributes.get("perm", ()))
                if perm and perm == _to_last(len(perm)):
                    self.first[node.outputs[0]] = node.inputs[0]
            yield node
            return
        x, y = node.inputs[0], node.outputs[0]
        source, result = self.first.get(x, f"{x}/channels first of {y}"), f"{y}/channels first"
        if x not in self.first:
            yield self.transpose(x, source, _to_first(rank))
        operator, domain = _POOLS.get(node.title, (node.op_type, node.domain))
        attributes = {n: v for n, v in node.attributes.items() if n != "channels_last"}
        inputs = (source, *node.inputs[1:])
        version = node.version if domain else self.opset
        yield replace(
            node,
            op_type=operator,
            domain=domain,
            version=version,
            inputs=inputs,
            outputs=(result,),
            attributes=attributes,
        )
        self.first[y] = result
        yield self.transpose(result, y, _to_last(rank))

    def turned(self, node: Node) -> str:
        """The value that a Transpose makes, where it is there already; else ""."""
        perm = tuple(node.attributes.get("perm", ()))
        return self.first.get(node.inputs[0], "") if perm and perm == _to_first(len(perm)) else ""

    def transpose(self, x: str, y: str, perm: tuple[int, ...]) -> Node:
        name = f"{y}/Transpose"
        return Node("Transpose", "", self.opset, name, (x,), outputs=(y,), attributes={"perm": perm})

    def rank(self, name: str) -> int:
        """The number of axes of a value; 0 where it is not known."""
        while (node := self.maker.get(name)) is not None:
            if node.op_type == "QLinearConv":
                weights = self.graph.initializers.get(node.inputs[_WEIGHTS])
                return 0 if weights is None else weights.ndim
            if node.op_type in ("QLinearAveragePool", "NhwcMaxPool", "MaxPool"):
                return len(node.attributes.get("kernel_shape", ())) + 2
            if node.op_type == "Transpose" and node.attributes.get("perm"):
                return len(node.attributes["perm"])
            if node.op_type not in _SAME_RANK:
                return 0
            name = node.inputs[2 if node.op_type == "QLinearConcat" else 0]
        tensor = self.graph.inputs.get(name)
        return len(tensor.shape) if tensor is not None and tensor.shape is not None else 0


def _to_first(rank: int) -> tuple[int, ...]:
    return (0, rank - 1, *range(1, rank - 1))


def _to_last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)
