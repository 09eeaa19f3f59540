"""Trains a digit classifier for everybody, and writes the handwriting of one user who slants to the left.

Writes model.onnx, trained on scikit-learn's digits as they are, and `user-few.bin` and `user-held.bin`: digits of the
same set that no training saw, slanted. A file has the number of images and, for each, a label (int32) and 64 pixels
(float32).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from scipy.ndimage import affine_transform
from sklearn.datasets import load_digits

from minbuild.training.api import CheckpointState, Module, Optimizer
from minbuild.training.artifacts import LossType, OptimType, generate_artifacts

HIDDEN, BATCH, EPOCHS, EVERYBODY, FEW = 48, 32, 12, 1200, 80
SLANT = -0.9  # columns that a row moves against the one above


def forward() -> onnx.ModelProto:
    """image [batch,64] -> scores [batch,10]: two layers with random weights."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> TensorProto:
        spread = np.sqrt(2 / shape[1]) if len(shape) > 1 else 0.0
        return numpy_helper.from_array((spread * random.standard_normal(shape)).astype(np.float32), name)

    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["image", "body.weight", "body.bias"], ["hidden"], transB=1),
            helper.make_node("Relu", ["hidden"], ["features"]),
            helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["scores"], transB=1),
        ],
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        [
            weight("body.weight", HIDDEN, 64),
            weight("body.bias", HIDDEN),
            weight("head.weight", 10, HIDDEN),
            weight("head.bias", 10),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def train(images: np.ndarray, labels: np.ndarray) -> None:
    """Trains both layers and writes model.onnx."""
    names = ["body.weight", "body.bias", "head.weight", "head.bias"]
    generate_artifacts(
        forward(),
        requires_grad=names,
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory="everybody",
    )
    state = CheckpointState.load_checkpoint("everybody/checkpoint")
    model = Module("everybody/training_model.onnx", state, "everybody/eval_model.onnx")
    optimizer = Optimizer("everybody/optimizer_model.onnx", model)
    optimizer.set_learning_rate(0.003)
    for epoch in range(EPOCHS):
        order = np.random.default_rng(epoch).permutation(len(labels))
        for first in range(0, len(order), BATCH):
            batch = order[first : first + BATCH]
            loss = model(images[batch], labels[batch])
            optimizer.step()
            model.lazy_reset_grad()
    print(f"for everybody: loss {float(loss):.4f} at the end")
    trained = forward()
    for initializer in trained.graph.initializer:
        initializer.CopyFrom(
            numpy_helper.from_array(state.parameters[initializer.name].data.copy(), initializer.name)
        )
    onnx.save(trained, "model.onnx")


def slanted(image: np.ndarray) -> np.ndarray:
    """An image of 8 by 8 pixels, sheared around its middle row."""
    matrix = np.array([[1, 0], [SLANT, 1]])
    middle = np.array([3.5, 3.5])
    return affine_transform(image, matrix, middle - matrix @ middle, order=1)


def write(name: str, images: np.ndarray, labels: np.ndarray) -> None:
    rows = np.zeros(len(labels), np.dtype([("label", "<i4"), ("pixels", "<f4", 64)]))
    rows["label"], rows["pixels"] = labels, images
    Path(name).write_bytes(np.int32(len(labels)).astype("<i4").tobytes() + rows.tobytes())


digits = load_digits()
order = np.random.default_rng(1).permutation(len(digits.target))
images, labels = (digits.images[order] / 16).astype(np.float32), digits.target[order].astype(np.int64)
train(images[:EVERYBODY].reshape(-1, 64), labels[:EVERYBODY])
user = np.stack([slanted(image) for image in images[EVERYBODY:]]).reshape(-1, 64)
write("user-few.bin", user[:FEW], labels[EVERYBODY:][:FEW])
write("user-held.bin", user[FEW:], labels[EVERYBODY:][FEW:])
