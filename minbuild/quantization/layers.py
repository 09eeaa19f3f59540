"""The layers of an inference graph that 8-bit numbers can compute: Conv, Gemm and MatMul by a constant float weight.
Batch normalisation behind a convolution is folded into it first, as its factors would stay float otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import Graph, Node


@dataclass(frozen=True)
class Layer:
    """A product by a constant: `weight` as the node reads it, with the axis of its output channels; and its bias where
    that can be 32-bit integers beside the product."""

    node: Node
    weight: np.ndarray
    axis: int
    bias: np.ndarray | None


class Constants:
    """The values of a graph that no input changes: initializers, parameters, and their Identity and Transpose."""

    def __init__(self, graph: Graph, parameters: Mapping[str, np.ndarray]) -> None:
        self.makers = {name: node for node in graph.nodes for name in node.outputs if name}
        self.arrays = {n: np.asarray(a) for n, a in {**graph.initializers, **parameters}.items()}

    def float_array(self, name: str) -> np.ndarray | None:
        """The float32 values under a name; None where they are computed or of another type."""
        maker = self.makers.get(name)
        if maker is None:
            found = self.arrays.get(name)
        elif maker.op_type == "Constant" and "value" in maker.attributes:
            found = np.asarray(maker.attributes["value"])
        elif maker.op_type in ("Identity", "Transpose") and not maker.domain:
            found = self.float_array(maker.inputs[0])
            if found is not None and maker.op_type == "Transpose":
                found = found.transpose(maker.attributes.get("perm"))
        else:
            return None
        return found if found is not None and found.dtype == np.float32 else None


def layers_of(graph: Graph, constants: Constants) -> Iterator[Layer]:
    """The layers that can be quantised, in order."""
    for node in graph.nodes:
        if node.domain or node.op_type not in ("Conv", "Gemm", "MatMul"):
            continue
        weight = constants.float_array(node.inputs[1])
        if weight is None or weight.ndim < 2 or constants.float_array(node.inputs[0]) is not None:
            continue
        if node.op_type == "MatMul":
            # A stack of matrices has a scale for each column, which all matrices share.
            yield Layer(node, weight, weight.ndim - 1, None)
            continue
        bias = constants.float_array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
        axis = 0
        if node.op_type == "Gemm":
            axis = 0 if node.attributes.get("transB", 0) else 1
            plain = node.attributes.get("alpha", 1.0) == node.attributes.get("beta", 1.0) == 1.0
            bias = bias if plain else None
        bias = bias if bias is not None and bias.shape == (weight.shape[axis],) else None
        yield Layer(node, weight, axis, bias)


def with_folded_normalization(graph: Graph, parameters: Mapping[str, np.ndarray]) -> Graph:
    """The graph with each BatchNormalization that alone reads a convolution by constants folded into that one."""
    constants = Constants(graph, parameters)
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in names_read(node):
            readers.setdefault(name, []).append(node)
    folded: dict[int, Node | None] = {}
    added: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        conv = constants.makers.get(node.inputs[0]) if node.inputs else None
        if node.op_type != "BatchNormalization" or node.domain or node.attributes.get("training_mode", 0):
            continue
        if conv is None or conv.op_type != "Conv" or conv.domain or len(readers[node.inputs[0]]) > 1:
            continue
        used = [n for n in node.outputs[1:] if n in readers or n in graph.outputs]
        if used or node.inputs[0] in graph.outputs:
            continue
        made = _folded(conv, node, constants)
        if made is not None:
            names = tuple(f"{conv.outputs[0]}/{n}" for n in ("folded_weight", "folded_bias"))
            added |= dict(zip(names, made, strict=True))
            folded[id(conv)] = replace(conv, inputs=(conv.inputs[0], *names), outputs=node.outputs[:1])
            folded[id(node)] = None
    nodes = tuple(kept for n in graph.nodes if (kept := folded.get(id(n), n)) is not None)
    return replace(graph, nodes=nodes, initializers={**graph.initializers, **added})


def _folded(conv: Node, normalization: Node, constants: Constants) -> tuple[np.ndarray, np.ndarray] | None:
    """Weight and bias of the convolution with the normalisation in them, computed in double precision."""
    found = [constants.float_array(n) for n in (conv.inputs[1], *normalization.inputs[1:5])]
    biased = len(conv.inputs) > 2 and bool(conv.inputs[2])
    found.append(constants.float_array(conv.inputs[2]) if biased else np.zeros(1, np.float32))
    if any(array is None for array in found):
        return None
    weight, scale, shift, mean, variance, bias = (np.asarray(a, np.float64) for a in found)
    factor = scale / np.sqrt(variance + normalization.attributes.get("epsilon", 1e-5))
    channels = (-1, *(1,) * (weight.ndim - 1))
    wide = weight * factor.reshape(channels), (bias - mean) * factor + shift
    return wide[0].astype(np.float32), wide[1].astype(np.float32)
