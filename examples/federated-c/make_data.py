"""Writes model.onnx, a perceptron for digits of 8 by 8 pixels with random weights, client0.bin to client4.bin with 200
digits each, and held.npz with those that no client has.

A client's file has rows of 64 float32 and an int64 label.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

CLIENTS, SAMPLES, HIDDEN = 5, 200, 32

random = np.random.default_rng(0)
weights = [
    numpy_helper.from_array(
        (np.sqrt(2 / 64) * random.standard_normal((HIDDEN, 64))).astype(np.float32), "w1"
    ),
    numpy_helper.from_array(np.zeros(HIDDEN, np.float32), "b1"),
    numpy_helper.from_array(
        (np.sqrt(2 / HIDDEN) * random.standard_normal((10, HIDDEN))).astype(np.float32), "w2"
    ),
    numpy_helper.from_array(np.zeros(10, np.float32), "b2"),
]
nodes = [
    helper.make_node("Gemm", ["pixels", "w1", "b1"], ["h"], transB=1),
    helper.make_node("Relu", ["h"], ["r"]),
    helper.make_node("Gemm", ["r", "w2", "b2"], ["scores"], transB=1),
]
graph = helper.make_graph(
    nodes,
    "digits",
    [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 64])],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
    weights,
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")

digits = load_digits()
order = random.permutation(len(digits.target))
pixels, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order].astype(np.int64)
for number in range(CLIENTS):
    part = slice(number * SAMPLES, (number + 1) * SAMPLES)
    rows = np.empty(SAMPLES, np.dtype([("pixels", "<f4", 64), ("label", "<i8")]))
    rows["pixels"], rows["label"] = pixels[part], labels[part]
    rows.tofile(f"client{number}.bin")
np.savez("held.npz", pixels=pixels[CLIENTS * SAMPLES :], labels=labels[CLIENTS * SAMPLES :])
