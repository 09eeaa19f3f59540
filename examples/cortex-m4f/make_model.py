"""Writes model.onnx, an autoencoder of vibration: 64 samples through a bottleneck of 8 values, with random weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(3)


def weight(name: str, *shape: int) -> TensorProto:
    spread = np.sqrt(1 / shape[1]) if len(shape) > 1 else 0.0
    return numpy_helper.from_array((spread * random.standard_normal(shape)).astype(np.float32), name)


graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["window", "encode.weight", "encode.bias"], ["code"], transB=1),
        helper.make_node("Tanh", ["code"], ["bottleneck"]),
        helper.make_node("Gemm", ["bottleneck", "decode.weight", "decode.bias"], ["again"], transB=1),
    ],
    "vibration",
    [helper.make_tensor_value_info("window", TensorProto.FLOAT, ["batch", 64])],
    [helper.make_tensor_value_info("again", TensorProto.FLOAT, ["batch", 64])],
    [
        weight("encode.weight", 8, 64),
        weight("encode.bias", 8),
        weight("decode.weight", 64, 8),
        weight("decode.bias", 64),
    ],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
