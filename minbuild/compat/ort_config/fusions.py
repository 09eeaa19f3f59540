"""Which nodes ONNX Runtime runs as one on a CPU: its optimizations of the extended level, as far as training graphs and
their evaluation graphs have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from minbuild.compat.ort_config.effective_graph import EffectiveGraph
from minbuild.frontend.onnx.opsets import since_version
from minbuild.ir import Node
from minbuild.ops.core.graph_builder import MICROSOFT

_GEMM_ENDS = frozenset(
    {
        "Elu",
        "HardSigmoid",
        "Relu",
        "Selu",
        "Sigmoid",
        "Softplus",
        "Softsign",
        "Tanh",
        "ThresholdedRelu",
    }
)
_CONV_ENDS = frozenset({"HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})


def fuse(graph: EffectiveGraph) -> None:
    """All fusions, each until it finds nothing more, in ONNX Runtime's order."""
    for rule in RULES:
        while rule(graph):
            pass


def fuse_convolutions(graph: EffectiveGraph) -> bool:
    """Conv and the activation behind it: the only fusion that a model keeps for later when it is saved unfused."""
    for node in _all(graph, "Conv"):
        reader = graph.reader(node.outputs[0])
        if reader is not None and _ends_conv(reader, graph):
            graph.replace((node, reader), graph.like(reader, "FusedConv", node.inputs, MICROSOFT))
            return True
    return False


def _ends_conv(node: Node, graph: EffectiveGraph) -> bool:
    if node.op_type == "Clip":
        return all(not name or name in graph.constants for name in node.inputs[1:])
    return not node.domain and node.op_type in _CONV_ENDS


def _gemm(graph: EffectiveGraph) -> bool:
    """Gemm and the activation behind it."""
    for node in _all(graph, "Gemm"):
        reader = graph.reader(node.outputs[0])
        if reader is not None and _ends_gemm(reader):
            graph.replace((node, reader), graph.like(reader, "FusedGemm", node.inputs, MICROSOFT))
            return True
    return False


def _ends_gemm(node: Node) -> bool:
    if node.op_type == "LeakyRelu":  # its later version is not looked for
        return since_version(node.domain, node.op_type, node.version) == 6
    return not node.domain and node.op_type in _GEMM_ENDS


def _conv_add(graph: EffectiveGraph) -> bool:
    """Conv, the addition of something of the same shape, and the activation behind that where there is one."""
    for node in _all(graph, "Conv"):
        reader = graph.reader(node.outputs[0])
        if reader is None or reader.op_type != "Add" or reader.domain:
            continue
        shapes = [graph.shape(name) for name in reader.inputs]
        if shapes[0] is None or shapes[0] != shapes[1]:
            continue
        last = graph.reader(reader.outputs[0])
        nodes: tuple[Node, ...] = (node, reader)
        if last is not None and last.op_type == "Relu" and not last.domain:
            nodes = (*nodes, last)
        graph.replace(nodes, graph.like(nodes[-1], "FusedConv", (*node.inputs, *reader.inputs), MICROSOFT))
        return True
    return False


def _gelu(graph: EffectiveGraph) -> bool:
    """0.5 * x * (1 + erf(x / sqrt 2)), in either order of the products."""
    for erf in _all(graph, "Erf"):
        scaled, plus = graph.maker(erf.inputs[0]), graph.reader(erf.outputs[0])
        if scaled is None or plus is None or plus.op_type != "Add" or not _halves_root(scaled, graph):
            continue
        x = scaled.inputs[0]
        first = graph.reader(plus.outputs[0])
        if first is None or first.op_type != "Mul":
            continue
        other = next(n for n in first.inputs if n != plus.outputs[0])
        if other == x:
            last = graph.reader(first.outputs[0])
            if last is None or last.op_type != "Mul" or 0.5 not in map(graph.number, last.inputs):
                continue
            nodes = (scaled, erf, plus, first, last)
        else:
            half = graph.maker(other)
            if half is None or half.op_type != "Mul" or 0.5 not in map(graph.number, half.inputs):
                continue
            nodes = (scaled, erf, plus, half, first)
        graph.replace(nodes, graph.like(nodes[-1], "Gelu", (x,), MICROSOFT))
        return True
    return False


def _halves_root(node: Node, graph: EffectiveGraph) -> bool:
    number = graph.number(node.inputs[1]) if len(node.inputs) == 2 else None
    expected = {"Div": math.sqrt(2), "Mul": math.sqrt(0.5)}.get(node.op_type)
    return number is not None and expected is not None and math.isclose(number, expected, rel_tol=1e-3)


def _layer_norm(graph: EffectiveGraph) -> bool:
    """(x - mean) / sqrt(mean of squares + epsilon) * scale + shift."""
    for root in _all(graph, "Sqrt"):
        plus = graph.maker(root.inputs[0])
        mean = next((m for n in plus.inputs if (m := graph.maker(n))), None) if plus else None
        power = graph.maker(mean.inputs[0]) if mean and mean.op_type == "ReduceMean" else None
        centred = graph.maker(power.inputs[0]) if power and power.op_type in ("Pow", "Mul") else None
        average = graph.maker(centred.inputs[1]) if centred and centred.op_type == "Sub" else None
        quotient = graph.reader(root.outputs[0])
        scaled = graph.reader(quotient.outputs[0]) if quotient and quotient.op_type == "Div" else None
        shifted = graph.reader(scaled.outputs[0]) if scaled and scaled.op_type == "Mul" else None
        found = (average, centred, power, mean, plus, root, quotient, scaled, shifted)
        nodes = tuple(node for node in found if node is not None)
        if len(nodes) < len(found) or average.op_type != "ReduceMean" or shifted.op_type != "Add":  # type: ignore[union-attr]
            continue
        x, scale = nodes[0].inputs[0], next(n for n in nodes[7].inputs if n != nodes[6].outputs[0])
        shift = next(n for n in nodes[8].inputs if n != nodes[7].outputs[0])
        graph.replace(nodes, graph.like(nodes[8], "LayerNormalization", (x, scale, shift), version=1))
        return True
    return False


def _bias_gelu(graph: EffectiveGraph) -> bool:
    """The addition of a vector in front of Gelu."""
    for gelu in _all(graph, "Gelu"):
        addition = graph.maker(gelu.inputs[0])
        if addition is None or addition.op_type != "Add" or graph.reader(gelu.inputs[0]) is None:
            continue
        if 1 in (graph.rank(name) for name in addition.inputs):
            graph.replace((addition, gelu), graph.like(gelu, "BiasGelu", addition.inputs, MICROSOFT))
            return True
    return False


def _skip_layer_norm(graph: EffectiveGraph) -> bool:
    """The addition of two tensors of three dimensions in front of a layer normalization of one result."""
    for norm in _all(graph, "LayerNormalization"):
        addition = graph.maker(norm.inputs[0])
        if addition is None or addition.op_type != "Add" or graph.reader(norm.inputs[0]) is None:
            continue
        shapes = [graph.shape(name) for name in addition.inputs]
        if any(graph.readers[name] for name in norm.outputs[1:] if name) or shapes[0] != shapes[1]:
            continue
        if shapes[0] is not None and len(shapes[0]) == 3:
            inputs = (*addition.inputs, *norm.inputs[1:])
            graph.replace((addition, norm), graph.like(norm, "SkipLayerNormalization", inputs, MICROSOFT))
            return True
    return False


def _split(graph: EffectiveGraph) -> bool:
    """Slices that cut one value into pieces without a rest are one Split."""
    for name in dict.fromkeys(node.inputs[0] for node in _all(graph, "Slice")):
        slices = tuple(n for n in _all(graph, "Slice") if n.inputs[0] == name)
        shape = graph.shape(name)
        if len(slices) < 2 or graph.readers[name] != len(slices) or not shape:
            continue
        cuts = [[graph.number(n) for n in node.inputs[1:4]] for node in slices]
        if any(None in cut for cut in cuts) or len({cut[2] for cut in cuts}) > 1:
            continue
        size = shape[int(cuts[0][2] or 0)]
        ends = sorted((cut[0] or 0, min(cut[1] or 0, size)) for cut in cuts) if isinstance(size, int) else []
        if ends and ends[0][0] == 0 and ends[-1][1] == size and all(a[1] == b[0] for a, b in pairwise(ends)):
            outputs = tuple(node.outputs[0] for node in slices)
            graph.replace(slices, graph.like(slices[0], "Split", (name,), outputs=outputs))
            return True
    return False


def _matmul_transpose(graph: EffectiveGraph) -> bool:
    """Transposing the last two dimensions in front of a matrix product."""
    for product in _all(graph, "MatMul"):
        for name in product.inputs:
            turned = graph.maker(name)
            if turned is None or turned.op_type != "Transpose" or not _swaps_last(turned):
                continue
            inputs = tuple(turned.inputs[0] if n == name else n for n in product.inputs)
            gone = (turned, product) if graph.readers[name] == 1 else (product,)
            graph.replace(gone, graph.like(product, "FusedMatMul", inputs, MICROSOFT))
            return True
    return False


def _matmul_scale(graph: EffectiveGraph) -> bool:
    """Multiplying or dividing an operand or the result of a matrix product by a constant number."""
    for product in (*_all(graph, "MatMul"), *_all(graph, "FusedMatMul")):
        after = graph.reader(product.outputs[0])
        if after is not None and _scales(after, product.outputs[0], graph):
            graph.replace((product, after), graph.like(after, "FusedMatMul", product.inputs, MICROSOFT))
            return True
        for name in product.inputs:
            before = graph.maker(name)
            if before is None or not _scales(before, before.inputs[0], graph):
                continue
            inputs = tuple(before.inputs[0] if n == name else n for n in product.inputs)
            gone = (before, product) if graph.readers[name] == 1 else (product,)
            graph.replace(gone, graph.like(product, "FusedMatMul", inputs, MICROSOFT))
            return True
    return False


def _scales(node: Node, value: str, graph: EffectiveGraph) -> bool:
    """True if `node` is `value` times a constant, or divided by one."""
    if node.domain or node.op_type not in ("Mul", "Div") or value not in node.inputs:
        return False
    other = node.inputs[1] if node.inputs[0] == value else node.inputs[0]
    return graph.number(other) is not None and not (node.op_type == "Div" and other == node.inputs[0])


def _swaps_last(node: Node) -> bool:
    axes = tuple(node.attributes.get("perm", ()))
    count = len(axes)
    return count > 1 and axes == (*range(count - 2), count - 1, count - 2)


def _all(graph: EffectiveGraph, op_type: str) -> list[Node]:
    return [node for node in graph.nodes if node.op_type == op_type]


RULES: tuple[Callable[[EffectiveGraph], bool], ...] = (
    _gemm,
    fuse_convolutions,
    _conv_add,
    _gelu,
    _layer_norm,
    _matmul_transpose,
    _matmul_scale,
    _bias_gelu,
    _skip_layer_norm,
    _split,
)
