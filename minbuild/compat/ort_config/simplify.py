"""Simplifications that ONNX Runtime applies to every graph: constants, what follows from them, and nodes that do
nothing."""

from __future__ import annotations

from minbuild.compat.ort_config.effective_graph import EffectiveGraph
from minbuild.frontend.onnx.subgraphs import graphs_in
from minbuild.ir import Node

_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


_NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}  # second operands that change nothing


def simplify(graph: EffectiveGraph) -> None:
    """Everything that needs no kernels of its own, until nothing more is found."""
    fold_constants(graph)
    while (
        remove_no_ops(graph)
        or join_multiplications(graph)
        or fold_transpose_into_gemm(graph)
        or remove_dead_nodes(graph)
    ):
        pass


def fold_constants(graph: EffectiveGraph) -> None:
    """Nodes whose inputs are known, and Shape of what has fixed sizes, run before the graph does."""
    kept = []
    for node in graph.nodes:
        if _is_known(node, graph):
            graph.constants.update(name for name in node.outputs if name)
        else:
            kept.append(node)
    graph.nodes = kept


def _is_known(node: Node, graph: EffectiveGraph) -> bool:
    if node.op_type in _RANDOM or any(graphs_in(node)):
        return False
    if node.op_type in ("Shape", "Size") and not node.domain:
        shape = graph.types[node.inputs[0]].shape if node.inputs[0] in graph.types else None
        return shape is not None and all(isinstance(d, int) for d in shape)
    return all(not name or name in graph.constants for name in node.inputs)


def remove_no_ops(graph: EffectiveGraph) -> bool:
    """Identity, Dropout that drops nothing, x + 0, x * 1 and their like, unless they join an input with a result."""
    for node in graph.nodes:
        if not _is_idle(node, graph):
            continue
        source, result = node.inputs[0], node.outputs[0]
        if result not in graph.outputs:
            graph.nodes.remove(node)
            graph.rename(result, source)
            return True
        maker = graph.maker(source)
        if maker is not None and source not in graph.outputs:
            graph.nodes.remove(node)
            graph.retitle(source, result)
            return True
    return False


def _is_idle(node: Node, graph: EffectiveGraph) -> bool:
    if node.domain:
        return False
    if node.op_type == "Dropout":
        mask_read = any(name and graph.readers[name] for name in node.outputs[1:])
        training = len(node.inputs) > 2 and node.inputs[2] and graph.number(node.inputs[2]) != 0
        return not mask_read and not training
    if node.op_type in _NEUTRAL:
        return graph.number(node.inputs[1]) == _NEUTRAL[node.op_type] and graph.rank(node.inputs[1]) == 0
    return node.op_type == "Identity"


def join_multiplications(graph: EffectiveGraph) -> bool:
    """1 / a * b is b / a; a matrix product, or a Gemm without a bias, with something added is one Gemm."""
    for node in graph.nodes:
        reader = graph.reader(node.outputs[0]) if node.outputs else None
        if reader is None or node.domain or reader.domain:
            continue
        pair = (node.op_type, reader.op_type)
        if pair == ("Div", "Mul") and graph.number(node.inputs[0]) == 1.0:
            other = next((n for n in reader.inputs if n != node.outputs[0]), "")
            graph.replace((node, reader), graph.like(reader, "Div", (other, node.inputs[1])))
            return True
        if pair == ("Gemm", "Sum") and _adds_to_gemm(node, reader, graph):
            other = next(n for n in reader.inputs if n != node.outputs[0])
            graph.replace(
                (node, reader), graph.like(node, "Gemm", (*node.inputs[:2], other), outputs=reader.outputs)
            )
            return True
        if pair == ("MatMul", "Add") and _fits_gemm(node, reader, graph):
            bias = next(n for n in reader.inputs if n != node.outputs[0])
            graph.replace((node, reader), graph.like(reader, "Gemm", (*node.inputs, bias)))
            return True
    return False


def fold_transpose_into_gemm(graph: EffectiveGraph) -> bool:
    """Gemm turns its matrices itself, and its result where nothing is added to it."""
    for node in graph.nodes:
        if node.op_type != "Transpose" or node.domain or tuple(node.attributes.get("perm", (1, 0))) != (1, 0):
            continue
        if graph.rank(node.inputs[0]) != 2:
            continue
        maker = graph.maker(node.inputs[0])
        alone = graph.reader(node.inputs[0]) is not None
        if alone and maker is not None and maker.op_type == "Gemm" and not any(maker.inputs[2:]):
            graph.replace((maker, node), graph.like(maker, "Gemm", maker.inputs[:2], outputs=node.outputs))
            return True
        for reader in graph.nodes:
            if reader.op_type == "Gemm" and node.outputs[0] in reader.inputs[:2]:
                inputs = tuple(node.inputs[0] if n == node.outputs[0] else n for n in reader.inputs)
                graph.replace((reader,), graph.like(reader, "Gemm", inputs))
                return True
    return False


def _adds_to_gemm(product: Node, total: Node, graph: EffectiveGraph) -> bool:
    """A product without a bias, and one other value of its shape."""
    if any(product.inputs[2:]) or len(set(total.inputs)) != 2:
        return False
    shapes = [graph.shape(name) for name in total.inputs]
    return shapes[0] is not None and shapes[0] == shapes[1]


def _fits_gemm(product: Node, addition: Node, graph: EffectiveGraph) -> bool:
    """Both factors are matrices, and what is added is a vector or a row as long as a row of the product, or as large
    as the product."""
    if any(graph.rank(name) != 2 for name in product.inputs):
        return False
    bias = next((n for n in addition.inputs if n != product.outputs[0]), "")
    shape, whole = graph.shape(bias), graph.shape(product.outputs[0])
    if not shape or whole is None or shape[-1] != whole[-1]:
        return False
    return len(shape) == 1 or (len(shape) == 2 and shape[0] in (1, whole[0]))


def remove_dead_nodes(graph: EffectiveGraph) -> bool:
    """Nodes whose results nobody reads."""
    readers = graph.readers
    kept = [n for n in graph.nodes if any(readers[name] for name in n.outputs if name)]
    found = len(kept) < len(graph.nodes)
    graph.nodes = kept
    return found
