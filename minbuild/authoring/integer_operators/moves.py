"""Operators that move quantised numbers, or choose among them: the same of floats gives the same float values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from minbuild.authoring.integer_operators.values import Quantization, QuantizedValues
from minbuild.ir import Node

_MOVES = frozenset(
    (
        *("DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "Reshape", "Resize"),
        *("Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)
_PAD_VALUE = 2  # the input of Pad


def is_move(node: Node) -> bool:
    """True if every number of the results is one of the first input's, whatever the numbers are."""
    if node.domain or node.op_type not in _MOVES or (node.op_type == "MaxPool" and len(node.outputs) > 1):
        return False
    return node.op_type != "Resize" or node.attributes.get("mode", "nearest") == "nearest"


def write_move(node: Node, values: QuantizedValues) -> bool:
    """Writes the node of floats into `values`, beside the node itself, which may have other readers; False, and
    nothing, where the numbers have no one scale that is known."""
    by = values.known.get(node.inputs[0]) if is_move(node) else None
    if by is None or not values.of_whole(by):
        return False
    inputs = [values.dequantized(node.inputs[0], by), *node.inputs[1:]]
    if node.op_type == "Pad" and node.attributes.get("mode", "constant") == "constant":
        own = _pad_value(node, values, by)
        if not own:
            return False
        inputs[_PAD_VALUE:] = [own, *inputs[_PAD_VALUE + 1 :]]
    outputs = tuple(n and f"{n}/float" for n in node.outputs)
    values.nodes += (
        node,
        replace(node, name=f"{node.name}/float", inputs=tuple(inputs), outputs=outputs),
    )
    values.droppable |= {*node.outputs, *outputs}
    for q, real in zip(node.outputs, outputs, strict=True):
        if q:
            values.set_float_value(q, by, real)
    return True


def _pad_value(node: Node, values: QuantizedValues, by: Quantization) -> str:
    """The float value of what pads: a quantised number, by default 0; "" where its type is not known."""
    if len(node.inputs) > _PAD_VALUE and node.inputs[_PAD_VALUE]:
        return values.dequantized(node.inputs[_PAD_VALUE], by)
    point = values.array(by.point)
    if point is None:
        return ""
    return values.dequantized(values.add(f"{node.outputs[0]}/padding", np.zeros((), point.dtype)), by)
