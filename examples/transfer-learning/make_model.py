"""Makes an image classifier in the manner of MobileNetV2 and its training artifacts: python make_model.py FOLDER

The backbone stays as it is on the device, only the classifier's last layer trains. Its weights are random, which is
enough to tell made-up images apart; a real application exports a trained backbone here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from minbuild.authoring import Recipe, generate_artifacts

SIDE, CLASSES, FEATURES = 48, 4, 64


class Backbone:
    """Nodes in the order they run, and weights."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(11)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def add(self, operator: str, inputs: list[str], output: str = "", **attributes: object) -> str:
        output = output or f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def conv(self, x: str, name: str, shape: tuple[int, int, int], stride: int = 1, groups: int = 1) -> str:
        """[N,C,H,W] -> [N,O,H/stride,W/stride] with kernels of shape (O, C/groups, size), as after folding batch
        normalisation into them."""
        out, channels, size = shape
        spread = np.sqrt(2 / (channels * size * size))
        kernel = self.weight(f"{name}.weight", self.random.normal(0, spread, (out, channels, size, size)))
        bias = self.weight(f"{name}.bias", self.random.normal(0, 0.1, out))
        pads = [size // 2] * 4
        return self.add(
            "Conv",
            [x, kernel, bias],
            kernel_shape=[size, size],
            strides=[stride] * 2,
            pads=pads,
            group=groups,
        )

    def relu6(self, x: str) -> str:
        return self.add("Clip", [x, "zero", "six"])

    def block(self, x: str, name: str, channels: int, out: int, stride: int) -> str:
        """Inverted residual: widen, filter each channel by itself, narrow; around it a shortcut where shapes allow."""
        wide = 4 * channels
        y = self.relu6(self.conv(x, f"{name}.expand", (wide, channels, 1)))
        y = self.relu6(self.conv(y, f"{name}.depthwise", (wide, 1, 3), stride, groups=wide))
        y = self.conv(y, f"{name}.project", (out, wide, 1))
        return self.add("Add", [x, y]) if stride == 1 and channels == out else y


def forward() -> onnx.ModelProto:
    """image [batch,3,SIDE,SIDE] -> scores [batch,CLASSES]."""
    net = Backbone()
    net.weights += [numpy_helper.from_array(np.float32(n), name) for name, n in (("zero", 0), ("six", 6))]
    x = net.relu6(net.conv("image", "stem", (8, 3, 3), 2))
    channels = 8
    for i, (out, stride) in enumerate(((8, 1), (16, 2), (16, 1), (24, 2), (24, 1))):
        x = net.block(x, f"block{i}", channels, out, stride)
        channels = out
    x = net.relu6(net.conv(x, "last", (FEATURES, channels, 1)))
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x])])
    head = net.weight("classifier.weight", net.random.normal(0, 0.05, (CLASSES, FEATURES)))
    net.add("Gemm", [x, head, net.weight("classifier.bias", np.zeros(CLASSES))], "scores", transB=1)
    graph = helper.make_graph(
        net.nodes,
        "transfer",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES])],
        net.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def make(folder: Path) -> None:
    """Writes forward.onnx and, in artifacts/, what `minbuild reduce` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(forward(), str(folder / "forward.onnx"))
    recipe = Recipe(loss="cross-entropy", train=("classifier.*",), outputs=("scores",))
    generate_artifacts(folder / "forward.onnx", folder / "artifacts", recipe)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
