"""Pairs of QuantizeLinear and DequantizeLinear around layers: the form in which runtimes find products of 8 bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.ir import Graph, Node
from minbuild.planning.inference_export import prune
from minbuild.quantization.layers import Layer
from minbuild.quantization.ranges import Quantized, quantized_bias, quantized_weight, weight_range


def with_pairs(graph: Graph, layers: Sequence[Layer], ranges: Mapping[str, Quantized | None]) -> Graph:
    """The graph with the weights of `layers` in int8. `ranges` are those of a layer's first input by the name of its
    output; None leaves it, and the bias, in float. `graph` is the inference graph in float."""
    return _Writer(graph, ranges).written({id(layer.node): layer for layer in layers})


@dataclass
class _Writer:
    source: Graph
    ranges: Mapping[str, Quantized | None]
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def written(self, layers: Mapping[int, Layer]) -> Graph:
        nodes: list[Node] = []
        for node in self.source.nodes:
            layer = layers.get(id(node))
            nodes += [node] if layer is None else self._layer(layer)
        kept = {**self.source.initializers, **self.constants}
        return prune(replace(self.source, nodes=tuple(nodes), initializers=kept), self.source.outputs)

    def _layer(self, layer: Layer) -> Iterator[Node]:
        node, y = layer.node, layer.node.outputs[0]
        inputs = list(node.inputs)
        found = self.ranges[y]
        if found is not None:
            yield from self._activation(inputs[0], found, node.version)
            inputs[0] = f"{inputs[0]}/dequantized"
        scales = weight_range(layer.weight, layer.axis, pairs=found is not None)
        stored = quantized_weight(layer.weight, scales, layer.axis)
        yield self._dequantized(f"{y}/weight", stored, scales, layer.axis, node.version)
        inputs[1] = f"{y}/weight/dequantized"
        if layer.bias is not None and found is not None:
            products = (scales.scale * found.scale).astype(np.float32)
            bias = quantized_bias(layer.bias, products)
            if bias is not None:
                of_products = Quantized(products, np.zeros(products.shape, np.int32))
                yield self._dequantized(f"{y}/bias", bias, of_products, 0, node.version)
                inputs[2] = f"{y}/bias/dequantized"
        yield replace(node, inputs=tuple(inputs))

    def _activation(self, name: str, found: Quantized, version: int) -> Iterator[Node]:
        """The pair behind a value, once."""
        if f"{name}/scale" in self.constants:
            return
        end = self._pair_end(name, found, None, version)
        begin = replace(
            end,
            op_type="QuantizeLinear",
            name=f"{name}/QuantizeLinear",
            inputs=(name, *end.inputs[1:]),
            outputs=(f"{name}/quantized",),
        )
        yield from (begin, end)

    def _dequantized(
        self, title: str, integers: np.ndarray, found: Quantized, axis: int, version: int
    ) -> Node:
        self.constants[f"{title}/quantized"] = integers
        return self._pair_end(title, found, axis, version)

    def _pair_end(self, title: str, found: Quantized, axis: int | None, version: int) -> Node:
        self.constants |= {f"{title}/scale": found.scale, f"{title}/zero_point": found.zero}
        return Node(
            "DequantizeLinear",
            "",
            version,
            name=f"{title}/DequantizeLinear",
            inputs=(f"{title}/quantized", f"{title}/scale", f"{title}/zero_point"),
            outputs=(f"{title}/dequantized",),
            attributes={} if axis is None else {"axis": axis},
        )
