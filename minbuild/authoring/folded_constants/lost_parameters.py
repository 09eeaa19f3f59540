"""Parameters that the exporter left out: all but one of equal ones, and biases of zeros."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from minbuild.authoring.folded_constants.unfolded_graph import UnfoldedGraph
from minbuild.ir import Node

# Names that modules give to the inputs of operators.
_NORM = {1: "weight", 2: "bias"}
_LEAVES = dict.fromkeys(
    ("Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization"), _NORM
)
_LEAVES |= {"BatchNormalization": {**_NORM, 3: "running_mean", 4: "running_var"}, "MatMul": {1: "weight"}}
_WITH_BIAS = ("Conv", "ConvTranspose", "Gemm")


def split_equal_parameters(graph: UnfoldedGraph) -> None:
    """A copy for each submodule that has lost a parameter whose elements are all equal: those of others are
    equal because the module shares them."""
    for i, node in enumerate(graph.nodes):
        scope = graph.scope(node)
        inputs = list(node.inputs)
        for at, name in enumerate(inputs):
            if scope is None or name not in graph.arrays:
                continue
            own = _lost_leaf(graph, node, at, scope)
            if own and own != name and np.unique(graph.arrays[name]).size == 1:
                graph.add(own, graph.arrays[name].copy())
                inputs[at] = own
        graph.nodes[i] = replace(node, inputs=tuple(inputs))


def add_zero_biases(graph: UnfoldedGraph) -> None:
    """A bias for each layer that has lost one."""
    for i, node in enumerate(graph.nodes):
        scope = graph.scope(node)
        name = f"{scope}.bias" if scope else "bias"
        if scope is None or name not in graph.lost or node.domain or len(node.inputs) < 2:
            continue
        weight = graph.arrays.get(node.inputs[1])
        if weight is None:
            continue
        if node.op_type in _WITH_BIAS and not any(node.inputs[2:]):
            graph.add(name, np.zeros(_outputs_of(node, weight), weight.dtype))
            graph.nodes[i] = replace(node, inputs=(*node.inputs[:2], name))
        elif node.op_type == "MatMul" and weight.ndim == 2:
            graph.add(name, np.zeros(weight.shape[1], weight.dtype))
            product = f"{node.outputs[0]}/product"
            graph.scopes[product] = scope
            graph.nodes[i] = replace(node, outputs=(product,))
            sum_ = graph.node("Add", (product, name), node.outputs[0])
            graph.nodes.insert(i + 1, sum_)


def _lost_leaf(graph: UnfoldedGraph, node: Node, at: int, scope: str) -> str:
    """The lost parameter, or statistic, that input `at` of a node was; "" where there is none."""
    before = f"{scope}." if scope else ""
    leaf = _LEAVES.get(node.op_type, {}).get(at)
    if node.op_type == "Add" and f"{before}bias" in graph.lost:  # of a linear layer
        leaf = "bias"
    if leaf is not None:
        name = before + leaf
        buffers = [n for n in graph.model.metadata.buffers if n not in graph.arrays]
        return name if name in (*graph.lost, *buffers) else ""
    if node.inputs[at].rpartition(".")[0] == scope:
        return ""
    own = [n for n in graph.lost if n.rpartition(".")[0] == scope]
    known = {leaf for leaves in _LEAVES.values() for leaf in leaves.values()}
    others = [n for n in own if n.rpartition(".")[2] not in known]
    return others[0] if len(others) == 1 else ""


def _outputs_of(node: Node, weight: np.ndarray) -> int:
    """The number of outputs of a layer."""
    if node.op_type == "ConvTranspose":
        return int(weight.shape[1] * node.attributes.get("group", 1))
    turned = node.op_type == "Gemm" and not node.attributes.get("transB", 0)
    return int(weight.shape[1 if turned else 0])
