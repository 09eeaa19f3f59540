"""Models at the limits of size, written as ONNX without any framework: GPT-2 small, and a perceptron of any number of
parameters. Weights are random.

    python tests/slow/limit_models.py gpt2 MODEL.onnx
    python tests/slow/limit_models.py PARAMETERS MODEL.onnx
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

LAYERS, HEADS, WIDTH, WORDS, LENGTH = (
    12,
    12,
    768,
    50_257,
    128,
)  # GPT-2 small; LENGTH of its 1,024 positions are used
CLASSES = 10


class Writer:
    """Nodes and weights of one graph. Weights go to one file beside the model, so that no copy of all is in memory."""

    def __init__(self, path: Path, deviation: float = 0.02) -> None:
        self.path = path
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self._random = np.random.default_rng(11)
        self._deviation = deviation
        self._data = path.with_name(path.name + ".data").open("wb")
        self.parameters = 0

    def weight(self, name: str, *shape: int, value: float | None = None) -> str:
        """A trained parameter: normal random numbers, or all `value`."""
        data = (
            self._deviation * self._random.standard_normal(shape, np.float32)
            if value is None
            else np.full(shape, value, np.float32)
        )
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        places = {"location": Path(self._data.name).name, "offset": self._data.tell(), "length": data.nbytes}
        for key, text in places.items():
            tensor.external_data.add(key=key, value=str(text))
        self._data.write(data.tobytes())
        self.weights.append(tensor)
        self.parameters += data.size
        return name

    def constant(self, name: str, data: np.ndarray | np.float32) -> str:
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(data), name))
        return name

    def node(self, op: str, *inputs: str, count: int = 1, **attributes: object) -> str:
        """The first output of a new node, named by its number; the others are `<name>:1` and so on."""
        name = f"{op}_{len(self.nodes)}"
        outputs = [name, *(f"{name}:{i}" for i in range(1, count))]
        self.nodes.append(helper.make_node(op, list(inputs), outputs, name=name, **attributes))
        return name

    def finish(self, x: tuple[str, int, list[object]], y: tuple[str, list[object]]) -> int:
        """Writes the model with the input `x` and the output `y`; the number of parameters."""
        self._data.close()
        self.nodes[-1].output[0] = y[0]
        inputs = [helper.make_tensor_value_info(*x)]
        outputs = [helper.make_tensor_value_info(y[0], TensorProto.FLOAT, y[1])]
        graph = helper.make_graph(self.nodes, self.path.stem, inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        self.path.write_bytes(model.SerializeToString())
        return self.parameters


def gpt2(path: Path) -> int:
    """GPT-2 small with logits of every position as rows; its number of parameters."""
    w = Writer(path)
    words = w.weight("wte", WORDS, WIDTH)
    positions = w.weight("wpe", 1_024, WIDTH)
    scale = w.constant("scale", np.float32(1 / math.sqrt(WIDTH // HEADS)))
    future = w.constant("future", np.triu(np.full((LENGTH, LENGTH), -1e4, np.float32), 1))
    apart = w.constant("apart", np.array([0, LENGTH, HEADS, WIDTH // HEADS], np.int64))
    together = w.constant("together", np.array([0, LENGTH, WIDTH], np.int64))
    places = w.constant("places", np.arange(LENGTH, dtype=np.int64))
    x = w.node("Add", w.node("Gather", words, "tokens"), w.node("Gather", positions, places))
    for i in range(LAYERS):
        h = _linear(w, _normed(w, x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn", WIDTH, 3 * WIDTH)
        split = w.node("Split", h, count=3, axis=2)
        q, k, v = (w.node("Reshape", part, apart) for part in (split, f"{split}:1", f"{split}:2"))
        q, v = (w.node("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
        scores = w.node("MatMul", q, w.node("Transpose", k, perm=[0, 2, 3, 1]))
        weights = w.node("Softmax", w.node("Add", w.node("Mul", scores, scale), future), axis=-1)
        mixed = w.node("Transpose", w.node("MatMul", weights, v), perm=[0, 2, 1, 3])
        x = w.node(
            "Add", x, _linear(w, w.node("Reshape", mixed, together), f"h.{i}.attn.c_proj", WIDTH, WIDTH)
        )
        h = _linear(w, _normed(w, x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc", WIDTH, 4 * WIDTH)
        x = w.node("Add", x, _linear(w, _gelu(w, h), f"h.{i}.mlp.c_proj", 4 * WIDTH, WIDTH))
    logits = w.node("MatMul", _normed(w, x, "ln_f"), w.node("Transpose", words, perm=[1, 0]))
    w.node("Reshape", logits, w.constant("rows", np.array([-1, WORDS], np.int64)))
    return w.finish(("tokens", TensorProto.INT64, ["batch", LENGTH]), ("logits", ["rows", WORDS]))


def _normed(w: Writer, x: str, name: str) -> str:
    scale, bias = w.weight(f"{name}.weight", WIDTH, value=1.0), w.weight(f"{name}.bias", WIDTH, value=0.0)
    return w.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)


def _linear(w: Writer, x: str, name: str, inputs: int, outputs: int) -> str:
    product = w.node("MatMul", x, w.weight(f"{name}.weight", inputs, outputs))
    return w.node("Add", product, w.weight(f"{name}.bias", outputs, value=0.0))


def _gelu(w: Writer, x: str) -> str:
    """The approximation by tanh, as GPT-2 has it."""
    if not any(c.name == "gelu.cubic" for c in w.weights):
        numbers = (("cubic", 0.044715), ("slope", math.sqrt(2 / math.pi)), ("one", 1.0), ("half", 0.5))
        for name, number in numbers:
            w.constant(f"gelu.{name}", np.float32(number))
    cube = w.node("Mul", w.node("Mul", w.node("Mul", x, x), x), "gelu.cubic")
    curve = w.node("Tanh", w.node("Mul", w.node("Add", x, cube), "gelu.slope"))
    return w.node("Mul", w.node("Mul", x, "gelu.half"), w.node("Add", curve, "gelu.one"))


def perceptron(path: Path, parameters: int, width: int = 4_096) -> int:
    """Layers of `width` with about so many parameters in all; their number."""
    w = Writer(path, 1 / math.sqrt(width))
    x = "x"
    for i in _range(parameters, width):
        product = w.node(
            "Gemm", x, w.weight(f"fc{i}.weight", width, width), w.weight(f"fc{i}.bias", width, value=0.0)
        )
        x = w.node("Relu", product)
    w.node("Gemm", x, w.weight("head.weight", width, CLASSES), w.weight("head.bias", CLASSES, value=0.0))
    return w.finish(("x", TensorProto.FLOAT, ["batch", width]), ("logits", ["batch", CLASSES]))


def _range(parameters: int, width: int) -> Iterator[int]:
    yield from range(max(1, round((parameters - width * CLASSES) / (width * width + width))))


def kind(given: str) -> str | int:
    """gpt2, or a number of parameters."""
    return given if given == "gpt2" else int(given)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", metavar="gpt2|PARAMETERS", type=kind)
    parser.add_argument("model", metavar="MODEL.onnx", type=Path)
    given = parser.parse_args()
    count = gpt2(given.model) if given.kind == "gpt2" else perceptron(given.model, given.kind)
    sys.stdout.write(f"{count:,} parameters\n")
