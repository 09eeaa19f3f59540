"""The rewrite of a graph with operators on quantised values into one with float operators."""

from __future__ import annotations

from minbuild.authoring.integer_operators.attention import write_attention
from minbuild.authoring.integer_operators.channels_last import with_channels_first
from minbuild.authoring.integer_operators.dynamic_lstm import write_lstm
from minbuild.authoring.integer_operators.integer_products import IntegerProducts
from minbuild.authoring.integer_operators.moves import is_move, write_move
from minbuild.authoring.integer_operators.operators import operands_of, quantization_at, write_operator
from minbuild.authoring.integer_operators.values import QuantizedValues
from minbuild.ir import Graph, Node


def with_float_operators(graph: Graph, opset: int) -> Graph:
    """The graph with float operators in place of those on quantised values. Nodes without such a form stay. `opset` is
    the version of ONNX's own operators in `graph`."""
    graph = with_channels_first(graph, opset)
    values = QuantizedValues(graph, opset)
    products = IntegerProducts(values)
    _expect(graph, values)
    changed = False
    for node in graph.nodes:
        if products.write(node) or any(
            write(node, values) for write in (write_operator, write_move, write_lstm, write_attention)
        ):
            changed = True
        elif real := _float_value(node, values):
            values.write("Identity", (real,), node.outputs[0])
            changed = True
        else:
            if node.op_type == "QuantizeLinear":
                values.known[node.outputs[0]] = quantization_at(node, 1)
            values.nodes.append(node)
    return values.finished() if changed else graph


def _expect(graph: Graph, values: QuantizedValues) -> None:
    """Takes the quantisation of values from their readers, such as that of weights from behind a Gather."""
    for node in reversed(graph.nodes):
        for q, by in operands_of(node):
            if values.of_whole(by):
                values.known.setdefault(q, by)
        if is_move(node) and node.outputs[0] in values.known:
            values.known.setdefault(node.inputs[0], values.known[node.outputs[0]])


def _float_value(node: Node, values: QuantizedValues) -> str:
    """The float value that a DequantizeLinear makes once more; "" for another node."""
    if node.op_type != "DequantizeLinear" or node.attributes.get("block_size", 0):
        return ""
    ((q, by),) = operands_of(node)
    return values.float_value(q, by)
