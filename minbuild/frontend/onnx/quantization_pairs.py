"""FakeQuant as a pair of QuantizeLinear and DequantizeLinear, which runtimes for inference have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.frontend.onnx.subgraphs import graphs_in, names_read, with_graphs
from minbuild.ir import Graph, Node

FAKE_QUANT, MICROSOFT = "FakeQuant", "com.microsoft"
DYNAMIC_FAKE_QUANT, MINBUILD = "DynamicFakeQuant", "minbuild"
_DYNAMIC_SINCE = 11  # the first opset with DynamicQuantizeLinear
QUANTIZED_TYPES = ("int8", "uint8", "int16", "uint16")


def with_quantization_pairs(graph: Graph, opset: int, per_tensor: bool = True) -> Graph:
    """The graph with pairs in place of FakeQuant and DynamicFakeQuant nodes; of those only that have scales along an
    axis, unless `per_tensor`. FakeQuant nodes whose scale is no constant stay. `graph`, and those inside of its nodes,
    are in version `opset` of ONNX's own operators."""
    added: dict[str, np.ndarray] = {}
    nodes: list[Node] = []
    read = {name for node in graph.nodes for name in names_read(node)} | set(graph.outputs)
    for node in graph.nodes:
        if any(True for _ in graphs_in(node)):
            change = lambda inner: with_quantization_pairs(inner, opset, per_tensor)  # noqa: E731
            nodes.append(replace(node, attributes=with_graphs(node.attributes, change)))
            continue
        if node.title == f"{MINBUILD}:{DYNAMIC_FAKE_QUANT}" and per_tensor and opset >= _DYNAMIC_SINCE:
            nodes += _dynamic_pair(node, opset)
            continue
        expands = node.op_type == FAKE_QUANT and (per_tensor or "axis" in node.attributes)
        expands = expands and read.isdisjoint(node.outputs[1:])
        nodes += _pair(node, graph, opset, added) if expands else (node,)
    if len(nodes) == len(graph.nodes) and all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    return replace(graph, nodes=tuple(nodes), initializers={**graph.initializers, **added})


def _pair(node: Node, graph: Graph, opset: int, added: dict[str, np.ndarray]) -> Iterator[Node]:
    low, high = (int(node.attributes.get(n, d)) for n, d in (("quant_min", 0), ("quant_max", 255)))
    kinds = [np.dtype(name) for name in QUANTIZED_TYPES]
    kind = next((k for k in kinds if np.iinfo(k).min <= low and high <= np.iinfo(k).max), None)
    zero = graph.initializers.get(node.inputs[2])
    narrow = kind is not None and (low, high) != (np.iinfo(kind).min, np.iinfo(kind).max)
    if kind is None or zero is None or opset < _opset_with(node, kind, narrow):
        yield node
        return
    point = f"{node.name}/zero_point/{kind.name}"
    added[point] = np.asarray(zero).astype(kind)
    where = {n: v for n, v in node.attributes.items() if n in ("axis", "block_size")}
    quantized = f"{node.name}/quantized"
    inputs = node.inputs[1], point
    yield Node(
        "QuantizeLinear",
        "",
        opset,
        name=f"{node.name}/Quantize",
        inputs=(node.inputs[0], *inputs),
        outputs=(quantized,),
        attributes=where,
    )
    if narrow:
        bounds = f"{node.name}/low", f"{node.name}/high"
        added |= {n: np.array(bound, kind) for n, bound in zip(bounds, (low, high), strict=True)}
        clipped = f"{node.name}/clipped"
        yield Node(
            "Clip", "", opset, name=f"{node.name}/Clip", inputs=(quantized, *bounds), outputs=(clipped,)
        )
        quantized = clipped
    yield Node(
        "DequantizeLinear",
        "",
        opset,
        name=node.name,
        inputs=(quantized, *inputs),
        outputs=node.outputs[:1],
        attributes=where,
    )


def _dynamic_pair(node: Node, opset: int) -> Iterator[Node]:
    names = tuple(f"{node.name}/{part}" for part in ("quantized", "scale", "zero_point"))
    name = f"{node.name}/Quantize"
    yield Node("DynamicQuantizeLinear", "", opset, name=name, inputs=node.inputs, outputs=names)
    yield Node("DequantizeLinear", "", opset, name=node.name, inputs=names, outputs=node.outputs)


def _opset_with(node: Node, kind: np.dtype[Any], narrow: bool) -> int:
    """The first opset that has the pair."""
    if kind.itemsize > 1 or "block_size" in node.attributes:
        return 21
    return 13 if "axis" in node.attributes else 12 if narrow else 10
