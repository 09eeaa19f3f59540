"""The forward models of the golden sets, built node by node as a PyTorch export would contain them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

OPSET = 17


class Net:
    """A forward graph under construction. Methods append a layer and return the name of its output."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list = []
        self.weights: dict[str, np.ndarray] = {}
        self.frozen: set[str] = set()
        self.count = 0

    def add(self, op: str, inputs: list[str], outputs: list[str] | None = None, **attributes) -> str:
        self.count += 1
        outputs = outputs or [f"{op.lower()}_{self.count}"]
        self.nodes.append(helper.make_node(op, inputs, outputs, f"/{op}_{self.count}", **attributes))
        return outputs[0]

    def weight(self, name: str, shape: tuple[int, ...], fan_in: int, trains: bool = True) -> str:
        """Uniform in +-1/sqrt(fan_in), as PyTorch initialises Linear and Conv."""
        bound = 1.0 / np.sqrt(fan_in)
        self.weights[name] = self.rng.uniform(-bound, bound, shape).astype(np.float32)
        if not trains:
            self.frozen.add(name)
        return name

    def linear(self, x: str, name: str, wide: int, out: int, result: str = "", trains: bool = True) -> str:
        w = self.weight(f"{name}.weight", (out, wide), wide, trains)
        b = self.weight(f"{name}.bias", (out,), wide, trains)
        return self.add("Gemm", [x, w, b], [result] if result else None, alpha=1.0, beta=1.0, transB=1)

    def conv(
        self, x: str, name: str, channels: tuple[int, int], kernel: int = 3, stride: int = 1, groups: int = 1,
        bias: bool = True, trains: bool = True,
    ) -> str:  # fmt: skip
        """Convolution with "same" padding; `channels` are in and out."""
        wide = channels[0] // groups
        fan_in = wide * kernel * kernel
        inputs = [x, self.weight(f"{name}.weight", (channels[1], wide, kernel, kernel), fan_in, trains)]
        if bias:
            inputs.append(self.weight(f"{name}.bias", (channels[1],), fan_in, trains))
        return self.add(
            "Conv", inputs, kernel_shape=[kernel, kernel], strides=[stride, stride], dilations=[1, 1],
            pads=[kernel // 2] * 4, group=groups,
        )  # fmt: skip

    def norm(self, x: str, name: str, channels: int, trains: bool = True) -> str:
        """Batch normalisation in training mode. The running statistics are parameters that nobody trains."""
        self.weights[f"{name}.weight"] = self.rng.uniform(0.8, 1.2, channels).astype(np.float32)
        self.weights[f"{name}.bias"] = self.rng.uniform(-0.1, 0.1, channels).astype(np.float32)
        self.weights[f"{name}.running_mean"] = self.rng.uniform(-0.1, 0.1, channels).astype(np.float32)
        self.weights[f"{name}.running_var"] = self.rng.uniform(0.8, 1.2, channels).astype(np.float32)
        self.frozen |= {f"{name}.running_mean", f"{name}.running_var"}
        if not trains:
            self.frozen |= {f"{name}.weight", f"{name}.bias"}
        inputs = [x] + [f"{name}.{p}" for p in ("weight", "bias", "running_mean", "running_var")]
        outputs = [f"{name}.out", f"{name}.mean_out", f"{name}.var_out"]
        return self.add("BatchNormalization", inputs, outputs, epsilon=1e-5, momentum=0.9, training_mode=1)

    def relu6(self, x: str) -> str:
        bounds = [
            self.add("Constant", [], value=numpy_helper.from_array(np.array(v, np.float32))) for v in (0, 6)
        ]
        return self.add("Clip", [x, *bounds])

    def model(self, inputs: dict[str, tuple], outputs: dict[str, tuple]) -> ModelProto:
        """`inputs` and `outputs`: name -> (element type, dimensions)."""
        graph = helper.make_graph(
            self.nodes,
            "forward",
            [helper.make_tensor_value_info(n, t, list(s)) for n, (t, s) in inputs.items()],
            [helper.make_tensor_value_info(n, t, list(s)) for n, (t, s) in outputs.items()],
            [numpy_helper.from_array(w, n) for n, w in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


@dataclass(frozen=True)
class Case:
    """One golden set: the model, how it is trained, and what its inputs look like."""

    name: str
    title: str
    build: Callable[[], tuple[Net, ModelProto]]
    loss: str  # a LossType, or "weighted"
    optimizer: str  # an OptimType, or "clipped"
    lr: float
    inputs: dict[
        str, str
    ]  # input -> how record.py draws it: normal or unit with dimensions, class or index with K
    batch: int = 4
    extra_outputs: list[str] = field(default_factory=list)
    loss_inputs: list[str] = field(default_factory=list)
    ort: bool = False  # models in ONNX Runtime's own format instead of ONNX files


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def dense(batch: int | str = "batch", sizes: tuple[int, int, int] = (12, 16, 5)) -> tuple[Net, ModelProto]:
    net = Net(1)
    hidden = net.add("Relu", [net.linear("input", "fc1", sizes[0], sizes[1])])
    net.linear(hidden, "fc2", sizes[1], sizes[2], "output")
    return net, net.model({"input": (FLOAT, (batch, sizes[0]))}, {"output": (FLOAT, (batch, sizes[2]))})


def smooth() -> tuple[Net, ModelProto]:
    net = Net(2)
    x = net.add("Tanh", [net.linear("input", "fc1", 8, 12)])
    x = net.add("Sigmoid", [net.linear(x, "fc2", 12, 6)])
    net.linear(x, "fc3", 6, 3, "output")
    return net, net.model({"input": (FLOAT, ("batch", 8))}, {"output": (FLOAT, ("batch", 3))})


def classifier(size: int, channels: tuple[int, int], hidden: int, seed: int) -> tuple[Net, ModelProto]:
    """Two convolutions with pooling, then one or two dense layers: LeNet in small."""
    net = Net(seed)
    x = net.add("Relu", [net.conv("input", "conv1", (1, channels[0]))])
    x = net.add("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0], ceil_mode=0)
    x = net.add("Relu", [net.conv(x, "conv2", channels)])
    x = net.add("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0], ceil_mode=0)
    x = net.add("Flatten", [x], axis=1)
    wide = channels[1] * (size // 4) ** 2
    if hidden:
        x, wide = net.add("Relu", [net.linear(x, "fc1", wide, hidden)]), hidden
    net.linear(x, "fc", wide, 10, "output")
    return net, net.model({"input": (FLOAT, ("batch", 1, size, size))}, {"output": (FLOAT, ("batch", 10))})


def residual() -> tuple[Net, ModelProto]:
    """A strided stem, an inverted residual block with ReLU6, a plain one with ReLU, everything normalised."""
    net = Net(4)
    x = net.relu6(net.norm(net.conv("input", "stem", (3, 6), stride=2, bias=False), "stem_bn", 6))
    y = net.relu6(net.norm(net.conv(x, "expand", (6, 12), 1, bias=False), "expand_bn", 12))
    y = net.relu6(net.norm(net.conv(y, "depth", (12, 12), groups=12, bias=False), "depth_bn", 12))
    x = net.add("Add", [net.norm(net.conv(y, "project", (12, 6), 1, bias=False), "project_bn", 6), x])
    y = net.norm(net.conv(x, "conv", (6, 8), stride=2, bias=False), "conv_bn", 8)
    x = net.norm(net.conv(x, "down", (6, 8), 1, 2, bias=False), "down_bn", 8)
    x = net.add("Relu", [net.add("Add", [y, x])])
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x])], axis=1)
    net.linear(x, "fc", 8, 5, "output")
    return net, net.model({"input": (FLOAT, ("batch", 3, 12, 12))}, {"output": (FLOAT, ("batch", 5))})


def transfer() -> tuple[Net, ModelProto]:
    """A frozen backbone, partly with folded and partly with live normalisation; only the head trains."""
    net = Net(5)
    x = net.relu6(net.conv("input", "stem", (3, 6), stride=2, trains=False))
    y = net.relu6(net.conv(x, "depth", (6, 6), groups=6, trains=False))
    y = net.norm(net.conv(y, "project", (6, 6), 1, bias=False, trains=False), "bn", 6, trains=False)
    x = net.add("Add", [y, x])
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x])], axis=1)
    net.linear(x, "head", 6, 4, "output")
    return net, net.model({"input": (FLOAT, ("batch", 3, 8, 8))}, {"output": (FLOAT, ("batch", 4))})


def embedding() -> tuple[Net, ModelProto]:
    """Numbers and a category in; logits, probabilities, predicted class, untrained regression out."""
    net = Net(6)
    table = net.weight("emb.weight", (7, 3), 1)
    x = net.add("Concat", ["x", net.add("Gather", [table, "cat"], axis=0)], axis=1)
    x = net.add("Relu", [net.linear(x, "fc", 8, 10)])
    net.linear(x, "cls", 10, 4, "logits")
    net.add("Softmax", ["logits"], ["probs"], axis=-1)
    net.add("ArgMax", ["logits"], ["pred"], axis=-1, keepdims=0, select_last_index=0)
    net.linear(x, "reg", 10, 1, "reg", trains=False)
    inputs = {"x": (FLOAT, ("batch", 5)), "cat": (INT64, ("batch",))}
    wide = {"logits": (FLOAT, ("batch", 4)), "probs": (FLOAT, ("batch", 4))}
    return net, net.model(inputs, {**wide, "pred": (INT64, ("batch",)), "reg": (FLOAT, ("batch", 1))})


ARTIFACTS = Case(
    "digits", "16x16 image classifier, two convolutions, AdamW", lambda: classifier(16, (8, 16), 0, 7),
    "CrossEntropyLoss", "AdamW", 0.001, {"input": "normal 1 16 16", "labels": "class 10"}, 8,
)  # fmt: skip

CASES = (
    Case(
        "dense", "12-16-5 classifier, AdamW with weight decay, clipped gradients", dense,
        "CrossEntropyLoss", "clipped", 0.01, {"input": "normal 12", "labels": "class 5"},
    ),
    Case(
        "dense_fixed", "8-6-3 classifier at batch 4 only, AdamW", lambda: dense(4, (8, 6, 3)),
        "CrossEntropyLoss", "AdamW", 0.01, {"input": "normal 8", "labels": "class 3"},
    ),
    Case(
        "dense_ort", "12-16-5 classifier in .ort files, AdamW", dense,
        "CrossEntropyLoss", "AdamW", 0.01, {"input": "normal 12", "labels": "class 5"}, ort=True,
    ),
    Case(
        "conv", "8x8 image classifier with max pooling, AdamW", lambda: classifier(8, (4, 6), 12, 3),
        "CrossEntropyLoss", "AdamW", 0.005, {"input": "normal 1 8 8", "labels": "class 10"},
    ),
    Case(
        "residual", "depthwise and residual blocks, batch norm, ReLU6, SGD", residual,
        "CrossEntropyLoss", "SGD", 0.05, {"input": "normal 3 12 12", "labels": "class 5"},
    ),
    Case(
        "transfer", "frozen backbone, only the head trains, AdamW", transfer,
        "CrossEntropyLoss", "AdamW", 0.01, {"input": "normal 3 8 8", "labels": "class 4"},
    ),
    Case(
        "mse", "tanh and sigmoid regression, mean squared error, SGD", smooth,
        "MSELoss", "SGD", 0.05, {"input": "normal 8", "target": "normal 3"},
    ),
    Case(
        "bce", "tanh and sigmoid network, binary cross entropy, AdamW", smooth,
        "BCEWithLogitsLoss", "AdamW", 0.005, {"input": "normal 8", "target": "unit 3"},
    ),
    Case(
        "l1", "tanh and sigmoid regression, absolute error, AdamW", smooth,
        "L1Loss", "AdamW", 0.005, {"input": "normal 8", "target": "normal 3"},
    ),
    Case(
        "weighted", "0.6 squared + 0.4 absolute error, AdamW", smooth,
        "weighted", "AdamW", 0.005, {"input": "normal 8", "target": "normal 3"},
    ),
    Case(
        "embedding", "number and category features, four outputs, AdamW", embedding,
        "CrossEntropyLoss", "AdamW", 0.01, {"x": "normal 5", "cat": "index 7", "labels": "class 4"},
        6, ["probs", "pred", "reg"], ["logits"],
    ),
)  # fmt: skip
