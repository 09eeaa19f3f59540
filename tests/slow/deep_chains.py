"""Deep chains written as ONNX without any framework: classifiers of any number of nodes, with layers of a few numbers.

Time and memory of tools over the number of nodes are measured with them, and nothing else takes time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

WIDTH = 8  # of features, and channels of images
LENGTH, HEADS = 4, 2  # of the sequences of transformers
IMAGE = 4  # rows and columns


class _Writer:
    """Nodes and weights of one graph."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self._random = np.random.default_rng(5)

    def node(self, op: str, *inputs: str, name: str, more: tuple[str, ...] = (), **attributes: object) -> str:
        """The first output of a new node, both called `name`; `more` are its other outputs."""
        self.nodes.append(helper.make_node(op, list(inputs), [name, *more], name=name, **attributes))
        return name

    def constant(self, name: str, data: np.ndarray | np.float32) -> str:
        """An initializer called `name`."""
        self.weights.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """A parameter of uniform random numbers."""
        return self.constant(name, self._random.uniform(-0.3, 0.3, shape).astype(np.float32))

    def filled(self, name: str, value: float, size: int = WIDTH) -> str:
        """A parameter of `size` equal numbers."""
        return self.constant(name, np.full(size, value, np.float32))

    def gemm(self, x: str, name: str) -> str:
        """A dense layer of rows."""
        weight, bias = self.weight(f"{name}.weight", WIDTH, WIDTH), self.filled(f"{name}.bias", 0)
        return self.node("Gemm", x, weight, bias, name=name, transB=1)

    def dense(self, x: str, name: str, inputs: int = WIDTH, outputs: int = WIDTH) -> str:
        """A dense layer of the last axis, of two nodes."""
        product = self.node(
            "MatMul", x, self.weight(f"{name}.weight", inputs, outputs), name=f"{name}.product"
        )
        return self.node("Add", product, self.filled(f"{name}.bias", 0, outputs), name=name)


def _mlp(w: _Writer, x: str, name: str) -> str:
    return w.node("Relu", w.gemm(x, f"{name}.inner"), name=f"{name}.act")


def _residual(w: _Writer, x: str, name: str) -> str:
    hidden = w.node("Relu", w.gemm(x, f"{name}.inner"), name=f"{name}.act")
    return w.node("Add", x, w.gemm(hidden, f"{name}.outer"), name=f"{name}.sum")


def _convolution(w: _Writer, x: str, name: str) -> str:
    """A block of ResNets: two convolutions, each with its BatchNormalization in training mode."""
    hidden = w.node("Relu", _normalized_convolution(w, x, f"{name}.inner"), name=f"{name}.act")
    total = w.node("Add", x, _normalized_convolution(w, hidden, f"{name}.outer"), name=f"{name}.sum")
    return w.node("Relu", total, name=f"{name}.result")


def _normalized_convolution(w: _Writer, x: str, name: str) -> str:
    weight = w.weight(f"{name}.weight", WIDTH, WIDTH, 3, 3)
    result = w.node("Conv", x, weight, name=f"{name}.conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    numbers = {"scale": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    inputs = [w.filled(f"{name}.{part}", value) for part, value in numbers.items()]
    updated = (f"{name}.new_mean", f"{name}.new_var")
    return w.node("BatchNormalization", result, *inputs, name=name, more=updated, training_mode=1)


def _transformer(w: _Writer, x: str, name: str) -> str:
    """A layer with its normalizations in front, attention as exporters write it, and Gelu as Erf."""
    normed = _layer_norm(w, x, f"{name}.norm1")
    q, k, v = (
        w.node("Transpose", _by_heads(w, normed, f"{name}.{part}"), name=f"{name}.{part}.turned", perm=order)
        for part, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3)))
    )
    scores = w.node("Div", w.node("MatMul", q, k, name=f"{name}.scores"), "root", name=f"{name}.scaled")
    weights = w.node("Softmax", scores, name=f"{name}.weights", axis=-1)
    mixed = w.node("MatMul", weights, v, name=f"{name}.mixed")
    turned = w.node("Transpose", mixed, name=f"{name}.mixed.turned", perm=(0, 2, 1, 3))
    joined = w.node("Reshape", turned, "together", name=f"{name}.joined")
    x = w.node("Add", x, w.dense(joined, f"{name}.output"), name=f"{name}.sum1")
    hidden = w.dense(_layer_norm(w, x, f"{name}.norm2"), f"{name}.up", outputs=2 * WIDTH)
    return w.node("Add", x, w.dense(_gelu(w, hidden, name), f"{name}.down", 2 * WIDTH), name=f"{name}.sum2")


def _layer_norm(w: _Writer, x: str, name: str) -> str:
    scale, bias = w.filled(f"{name}.scale", 1), w.filled(f"{name}.bias", 0)
    return w.node("LayerNormalization", x, scale, bias, name=name, axis=-1)


def _by_heads(w: _Writer, x: str, name: str) -> str:
    return w.node("Reshape", w.dense(x, name), "heads", name=f"{name}.heads")


def _gelu(w: _Writer, x: str, name: str) -> str:
    curve = w.node("Erf", w.node("Div", x, "root2", name=f"{name}.gelu.div"), name=f"{name}.gelu.erf")
    more = w.node("Mul", x, w.node("Add", curve, "one", name=f"{name}.gelu.add"), name=f"{name}.gelu.mul")
    return w.node("Mul", more, "half", name=f"{name}.gelu")


_BLOCKS: Mapping[str, Callable[[_Writer, str, str], str]] = {
    "mlp": _mlp,
    "residual": _residual,
    "convolution": _convolution,
    "transformer": _transformer,
}
SHAPES = tuple(_BLOCKS)


def chain(shape: str, nodes: int) -> ModelProto:
    """A classifier of at most `nodes` nodes, one block of the kind `shape` behind the other."""
    w, last, block = _Writer(), "x", _BLOCKS[shape]
    extent = {"convolution": (WIDTH, IMAGE, IMAGE), "transformer": (LENGTH, WIDTH)}.get(shape, (WIDTH,))
    if shape == "transformer":
        w.constant("heads", np.array([0, LENGTH, HEADS, WIDTH // HEADS], np.int64))
        w.constant("together", np.array([0, LENGTH, WIDTH], np.int64))
        for name, number in (
            ("root", math.sqrt(WIDTH / HEADS)),
            ("root2", math.sqrt(2)),
            ("one", 1),
            ("half", 0.5),
        ):
            w.constant(name, np.float32(number))
    ends = {"convolution": 3, "transformer": 2}.get(shape, 1)
    number, longest = 0, 0
    while len(w.nodes) + longest + ends <= nodes:
        before = len(w.nodes)
        last = block(w, last, f"block{number}")
        number, longest = number + 1, len(w.nodes) - before
    if shape == "convolution":
        last = w.node("Flatten", w.node("GlobalAveragePool", last, name="pooled"), name="rows")
    if shape == "transformer":
        last = w.node("ReduceMean", last, name="mean", axes=[1], keepdims=0)
    w.gemm(last, "logits")
    graph = helper.make_graph(
        w.nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *extent])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", WIDTH])],
        w.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
