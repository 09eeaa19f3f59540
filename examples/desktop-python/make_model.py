"""Writes model.onnx, a small convolutional network for digits of 8 by 8 pixels, with random weights.

A model exported by `torch.onnx.export` or by Keras takes its place unchanged.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(0)
weights: list[TensorProto] = []


def weight(name: str, *shape: int) -> str:
    """A weight with the spread of He's initialization, [outputs, inputs...]; a bias is zero."""
    spread = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.0
    weights.append(numpy_helper.from_array((spread * random.standard_normal(shape)).astype(np.float32), name))
    return name


conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
nodes = [
    helper.make_node(
        "Conv", ["image", weight("conv1.weight", 8, 1, 3, 3), weight("conv1.bias", 8)], ["c1"], **conv
    ),
    helper.make_node("Relu", ["c1"], ["r1"]),
    helper.make_node(
        "Conv", ["r1", weight("conv2.weight", 16, 8, 3, 3), weight("conv2.bias", 16)], ["c2"], **conv
    ),
    helper.make_node("Relu", ["c2"], ["r2"]),
    helper.make_node("MaxPool", ["r2"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
    helper.make_node("Flatten", ["p2"], ["flat"]),
    helper.make_node(
        "Gemm", ["flat", weight("head.weight", 10, 256), weight("head.bias", 10)], ["scores"], transB=1
    ),
]
graph = helper.make_graph(
    nodes,
    "digits",
    [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
    weights,
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
