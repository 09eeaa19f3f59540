"""Small models whose activations are quantized everywhere, as quantizers write them: shared by tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from quantized_nets import CLASSES, saved, tensor

from minbuild.authoring import Recipe


def pair(
    x: str, y: str, scale: float, zero: np.generic
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Nodes and weights of a quantizer of `x` that makes `y`."""
    names = [f"{y}/scale", f"{y}/zero"]
    nodes = [
        helper.make_node("QuantizeLinear", [x, *names], [f"{y}/q"]),
        helper.make_node("DequantizeLinear", [f"{y}/q", *names], [y], name=y),
    ]
    return nodes, [tensor(n, np.asarray(a)) for n, a in zip(names, (np.float32(scale), zero), strict=True)]


class Net:
    """A model under construction, with quantizers of one type."""

    def __init__(self, kind: str, steps: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(8)
        self.zero = np.dtype(kind).type(0 if kind.startswith("i") else np.iinfo(kind).max // 2)
        self.scale = 2.0 / steps  # so that the largest numbers are cut off

    def quantized(self, x: str, y: str) -> str:
        nodes, weights = pair(x, y, self.scale, self.zero)
        self.nodes += nodes
        self.weights += weights
        return y

    def made(self, op: str, inputs: list[str], y: str, *shapes: tuple[int, ...], **attributes: object) -> str:
        """`op` of `inputs` and of new weights."""
        given = [
            tensor(f"{y}/w{i}", self.random.standard_normal(shape).astype(np.float32) / shape[-1] ** 0.5)
            for i, shape in enumerate(shapes)
        ]
        self.weights += given
        self.nodes.append(helper.make_node(op, [*inputs, *(w.name for w in given)], [y], **attributes))
        return y


def images(folder: Path, kind: str, steps: int) -> Path:
    """Convolutions, a branch and a sum; as ONNX Runtime's quantizer writes them."""
    net = Net(kind, steps)
    x = net.quantized(net.made("Conv", ["x"], "c0", (6, 3, 3, 3), pads=[1, 1, 1, 1]), "q0")
    y = net.quantized(net.made("Conv", [x], "c1", (6, 6, 3, 3), pads=[1, 1, 1, 1]), "q1")
    y = net.quantized(net.made("Conv", [y], "c2", (6, 6, 3, 3), pads=[1, 1, 1, 1]), "q2")
    y = net.quantized(net.made("Add", [x, y], "sum"), "q3")
    net.made("Relu", [y], "r")
    net.made("GlobalAveragePool", [net.quantized("r", "q4")], "p")
    net.made("Flatten", ["p"], "f")
    net.made("Gemm", ["f"], "y", (6, CLASSES), (CLASSES,))
    return saved(folder, net.nodes, net.weights, (3, 11, 11))


def gelus(folder: Path, kind: str, steps: int) -> Path:
    """Layers with the parts of Gelu, each of which is quantised; the first reads a view of what is quantised."""
    net = Net(kind, steps)
    net.weights += [
        tensor(n, np.array(v, np.float32)) for n, v in (("two", 2**0.5), ("one", 1), ("half", 0.5))
    ]
    net.weights.append(tensor("flat", np.array([0, -1])))
    net.made("Reshape", [net.quantized(net.made("Mul", ["x"], "m", (2, 1)), "q"), "flat"], "v0")
    for i, (depth, columns) in enumerate(((26, 33), (33, 21), (21, 19))):
        h = net.quantized(net.made("Gemm", [f"v{i}"], f"h{i}", (depth, columns), (columns,)), f"hq{i}")
        e = net.made("Erf", [net.made("Div", [h, "two"], f"d{i}")], f"e{i}")
        a = net.quantized(net.made("Add", [net.quantized(e, f"eq{i}"), "one"], f"a{i}"), f"aq{i}")
        o = net.quantized(net.made("Mul", [h, a], f"o{i}"), f"oq{i}")
        net.quantized(net.made("Mul", [o, "half"], f"g{i}"), f"v{i + 1}")
    net.made("Gemm", ["v3"], "y", (19, CLASSES), (CLASSES,))
    return saved(folder, net.nodes, net.weights, (2, 13))


def attention(folder: Path, kind: str, steps: int) -> Path:
    """Softmax, whose gradient reads what is quantised behind it."""
    net = Net(kind, steps)
    for name in "abv":
        net.quantized(net.made("MatMul", ["x"], name, (12, 12)), f"{name}q")
    net.made("Transpose", ["bq"], "t", perm=[0, 2, 1])
    scores = net.quantized(net.made("MatMul", ["aq", net.quantized("t", "tq")], "s"), "sq")
    weights = net.quantized(net.made("Softmax", [scores], "w", axis=-1), "wq")
    net.quantized(net.made("MatMul", [weights, "vq"], "o"), "oq")
    net.made("Flatten", ["oq"], "f")
    net.made("Gemm", ["f"], "y", (84, CLASSES), (CLASSES,))
    return saved(folder, net.nodes, net.weights, (7, 12))


NETS = {"images": images, "gelus": gelus, "attention": attention}
KINDS = {"int8": 100, "uint8": 200, "uint16": 40_000}  # and steps from -1 to 1
RECIPE = Recipe(loss="cross-entropy", optimizer="sgd")
MODELS = {
    f"{net} {kind}": (lambda folder, net=net, kind=kind: NETS[net](folder, kind, KINDS[kind]), RECIPE)
    for net in NETS
    for kind in KINDS
}
