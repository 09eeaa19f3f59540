"""Writes model.onnx: from a point of the plane to the scores of two colours, with random weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(2)
WIDTH = 16


def weight(name: str, *shape: int) -> TensorProto:
    spread = np.sqrt(2 / shape[1]) if len(shape) > 1 else 0.3
    return numpy_helper.from_array((spread * random.standard_normal(shape)).astype(np.float32), name)


graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["point", "a.weight", "a.bias"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["ra"]),
        helper.make_node("Gemm", ["ra", "b.weight", "b.bias"], ["b"], transB=1),
        helper.make_node("Relu", ["b"], ["rb"]),
        helper.make_node("Gemm", ["rb", "c.weight", "c.bias"], ["scores"], transB=1),
    ],
    "colours",
    [helper.make_tensor_value_info("point", TensorProto.FLOAT, ["batch", 2])],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 2])],
    [
        *(weight("a.weight", WIDTH, 2), weight("a.bias", WIDTH)),
        *(weight("b.weight", WIDTH, WIDTH), weight("b.bias", WIDTH)),
        *(weight("c.weight", 2, WIDTH), weight("c.bias", 2)),
    ],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
