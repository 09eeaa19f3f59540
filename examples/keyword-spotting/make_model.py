"""Trains a small keyword spotter on base.npz and writes keywords.onnx: its backbone under a new last layer.

The network is a DS-CNN, as in Arm's "Hello Edge": one convolution over time and frequency, then blocks that filter each
channel by itself and mix channels.
"""

from __future__ import annotations

import numpy as np
import onnx
from make_data import BASE, NEW
from onnx import TensorProto, helper, numpy_helper
from speech import BANDS, FRAMES

from minbuild.training.api import CheckpointState, Module, Optimizer
from minbuild.training.artifacts import LossType, OptimType, generate_artifacts

CHANNELS, BLOCKS, BATCH, EPOCHS = 32, 3, 32, 14


def network(classes: int, trained: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """sound [batch,1,FRAMES,BANDS] -> scores [batch,classes]; weights of `trained`, or random ones."""
    random, nodes, weights = np.random.default_rng(5), [], []

    def weight(name: str, *shape: int) -> str:
        spread = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.0
        value = (spread * random.standard_normal(shape)).astype(np.float32)
        known = (trained or {}).get(name)
        weights.append(numpy_helper.from_array(value if known is None else known, name))
        return name

    def conv(
        x: str, name: str, shape: tuple[int, ...], group: int = 1, strides: tuple[int, int] = (1, 1)
    ) -> str:
        inputs = [x, weight(f"{name}.weight", *shape), weight(f"{name}.bias", shape[0])]
        pads = [(k - 1) // 2 for k in shape[2:]] + [k // 2 for k in shape[2:]]
        nodes.append(helper.make_node("Conv", inputs, [name], group=group, strides=strides, pads=pads))
        nodes.append(helper.make_node("Relu", [name], [f"{name}.relu"]))
        return f"{name}.relu"

    x = conv("sound", "first", (CHANNELS, 1, 10, 4), strides=(2, 2))
    for i in range(BLOCKS):
        x = conv(x, f"block{i}.depthwise", (CHANNELS, 1, 3, 3), group=CHANNELS)
        x = conv(x, f"block{i}.pointwise", (CHANNELS, CHANNELS, 1, 1))
    head = "head" if trained else "words"
    nodes += [
        helper.make_node("GlobalAveragePool", [x], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node(
            "Gemm",
            ["features", weight(f"{head}.weight", classes, CHANNELS), weight(f"{head}.bias", classes)],
            ["scores"],
            transB=1,
        ),
    ]
    sound = helper.make_tensor_value_info("sound", TensorProto.FLOAT, ["batch", 1, FRAMES, BANDS])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", classes])
    graph = helper.make_graph(nodes, "keywords", [sound], [scores], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    data = np.load("base.npz")
    sounds, words = data["sounds"], data["words"].astype(np.int64)
    model = network(len(BASE))
    generate_artifacts(
        model,
        requires_grad=[w.name for w in model.graph.initializer],
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory="base",
    )
    state = CheckpointState.load_checkpoint("base/checkpoint")
    module = Module("base/training_model.onnx", state, "base/eval_model.onnx")
    optimizer = Optimizer("base/optimizer_model.onnx", module)
    for epoch in range(EPOCHS):
        optimizer.set_learning_rate(0.005 * (1 - epoch / EPOCHS))
        order = np.random.default_rng(epoch).permutation(len(words))
        losses = []
        for first in range(0, len(order), BATCH):
            batch = order[first : first + BATCH]
            losses.append(float(module(sounds[batch], words[batch])))
            optimizer.step()
            module.lazy_reset_grad()
    print(f"backbone: loss {np.mean(losses):.3f} on {len(BASE)} words at the end")
    trained = {name: parameter.data.copy() for name, parameter in state.parameters}
    onnx.save(network(len(NEW), trained), "keywords.onnx")


if __name__ == "__main__":
    main()
