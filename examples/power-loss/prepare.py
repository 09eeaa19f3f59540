"""Writes model.onnx, a classifier of digits with Dropout and random weights, and digits.bin with scikit-learn's digits.

digits.bin has the number of images and, for each, a label (int32) and 64 pixels (float32).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

HIDDEN = 96

random = np.random.default_rng(0)
graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["image", "body.weight", "body.bias"], ["hidden"], transB=1),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Dropout", ["active", "ratio", "training"], ["features"]),
        helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["scores"], transB=1),
    ],
    "digits",
    [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 64])],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
    [
        numpy_helper.from_array(np.float32(0.2), "ratio"),
        numpy_helper.from_array(np.True_, "training"),
        *(
            numpy_helper.from_array((spread * random.standard_normal(shape)).astype(np.float32), name)
            for name, shape, spread in (
                ("body.weight", (HIDDEN, 64), np.sqrt(2 / 64)),
                ("body.bias", (HIDDEN,), 0.0),
                ("head.weight", (10, HIDDEN), np.sqrt(1 / HIDDEN)),
                ("head.bias", (10,), 0.0),
            )
        ),
    ],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")

digits = load_digits()
rows = np.zeros(len(digits.target), np.dtype([("label", "<i4"), ("pixels", "<f4", 64)]))
rows["label"], rows["pixels"] = digits.target, digits.images.reshape(-1, 64) / 16
order = np.random.default_rng(1).permutation(len(rows))
Path("digits.bin").write_bytes(np.int32(len(rows)).astype("<i4").tobytes() + rows[order].tobytes())
