"""Random feed-forward nets: convolutions, pools, normalizations, attention, slices and sums of whatever fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from beside_interpreter import Beside, distance
from onnx import TensorProto, helper, numpy_helper

from minbuild.authoring import Recipe, Source, artifacts_of
from minbuild.frontend.onnx.reader import opset_in, read_model
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry
from minbuild.planning.compiled_model import CompiledModel
from minbuild.training.library import Library

REGISTRY = registry()
OPSET, CLASSES, LARGEST = 20, 3, 6
_NEAR = 3e-5
_OF_IMAGES = ("Relu", "Sigmoid", "Tanh", "Softplus", "Abs", "HardSwish", "Elu", "LeakyRelu", "Neg")
_OF_ROWS = ("Relu", "Sigmoid", "Tanh", "Softplus", "Abs", "Gelu", "Erf", "Neg", "Selu")

Shape = tuple[int, ...]  # of one sample


class Net:
    """A net being written: its nodes, its weights (w0, ...), its constants (k0, ...), and values by name."""

    def __init__(self, random: np.random.Generator, shape: Shape) -> None:
        self.random, self.nodes, self.arrays = random, [], {}
        self.values: list[tuple[str, Shape]] = [("x", shape)]

    def weight(self, *shape: int, scale: float = 0.0) -> str:
        scale = scale or 1 / np.sqrt(max(1, np.prod(shape[1:])))
        return self.hold("w", (self.random.standard_normal(shape) * scale).astype(np.float32))

    def positive(self, *shape: int) -> str:
        return self.hold("w", self.random.uniform(0.5, 1.5, shape).astype(np.float32))

    def constant(self, *numbers: int) -> str:
        return self.hold("k", np.array(numbers))

    def hold(self, kind: str, array: np.ndarray) -> str:
        name = f"{kind}{len(self.arrays)}"
        self.arrays[name] = array
        return name

    def add(self, op: str, inputs: tuple[str, ...], shape: Shape | None, **attributes: object) -> str:
        """A node; its result may be read by later ones if its `shape` is given."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, list(inputs), [name], name=f"n{len(self.nodes)}", **attributes)
        )
        if shape is not None:
            self.values.append((name, shape))
        return name

    def one_of(self, *names: str) -> str:
        return str(self.random.choice(names))

    def value(self, rank: int, *fitting: int) -> tuple[str, Shape]:
        """A value of so many axes, the last ones most often; with the last axes `fitting`, if given. There is one."""
        found = [v for v in self.values if len(v[1]) == rank and v[1][rank - len(fitting) :] == fitting]
        some = min(4, len(found)) if self.random.random() < 0.7 else len(found)
        return found[len(found) - 1 - self.random.integers(some)]

    def split(self, x: str, shape: Shape) -> None:
        first = int(self.random.integers(1, shape[0]))
        names = [f"t{len(self.nodes)}a", f"t{len(self.nodes)}b"]
        sizes = self.constant(first, shape[0] - first)
        self.nodes.append(helper.make_node("Split", [x, sizes], names, name=f"n{len(self.nodes)}", axis=1))
        self.values += [(names[0], (first, *shape[1:])), (names[1], (shape[0] - first, *shape[1:]))]


def convolution(net: Net, x: str, shape: Shape) -> None:
    channels, height, width = shape
    kernel, depthwise = int(net.random.choice((1, 3, 3, 5))), net.random.random() < 0.3
    stride = int(net.random.choice((1, 1, 2))) if min(height, width) > 3 else 1
    filters = channels if depthwise else int(net.random.choice((2, 3, 4, 8, 12)))
    made = (filters, (height - 1) // stride + 1, (width - 1) // stride + 1)
    bias = (net.weight(filters, scale=0.1),) if net.random.random() < 0.6 else ()
    weights = net.weight(filters, 1 if depthwise else channels, kernel, kernel)
    attributes = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": channels if depthwise else 1}
    y = net.add("Conv", (x, weights, *bias), made, kernel_shape=[kernel] * 2, **attributes)
    if net.random.random() < 0.5:
        net.add(net.one_of("Relu", "HardSwish", "Sigmoid"), (y,), made)


def image_step(net: Net) -> None:
    """One more operator of images."""
    x, shape = net.value(3)
    (channels, height, width), kind = shape, net.random.integers(14)
    if kind < 4:
        convolution(net, x, shape)
    elif kind == 4:
        net.add(net.one_of(*_OF_IMAGES), (x,), shape)
    elif kind == 5 and min(height, width) > 1:
        pool, pair = net.one_of("MaxPool", "AveragePool"), [2, 2]
        net.add(pool, (x,), (channels, height // 2, width // 2), kernel_shape=pair, strides=pair)
    elif kind == 6:
        gate = net.add("Sigmoid", (net.add("GlobalAveragePool", (x,), None),), (channels, 1, 1))
        net.add("Mul", (x, gate), shape)
    elif kind == 7:
        net.add(net.one_of("Add", "Mul", "Sub", "Max"), (x, net.value(3, *shape)[0]), shape)
    elif kind == 8:
        y, other = net.value(3, height, width)
        net.add("Concat", (x, y), (channels + other[0], height, width), axis=1)
    elif kind == 9 and channels > 1:
        net.split(x, shape)
    elif kind == 10:
        shift, mean = net.weight(channels, scale=0.1), net.weight(channels, scale=0.1)
        own = (net.positive(channels), shift, mean, net.positive(channels))
        net.add("BatchNormalization", (x, *own), shape)
    elif kind == 11:
        own = (net.positive(channels), net.weight(channels, scale=0.1))
        net.add("InstanceNormalization", (x, *own), shape)
    elif kind == 12:
        net.add("Transpose", (x,), (channels, width, height), perm=[0, 1, 3, 2])
    else:
        net.add("ReduceMean", (x, net.constant(2, 3)), (channels,), keepdims=0)


def row_step(net: Net) -> None:
    """One more operator of rows."""
    x, shape = net.value(1)
    (width,), kind = shape, net.random.integers(11)
    if kind < 3:
        more = int(net.random.choice((3, 5, 8, 16)))
        own = (net.weight(more, width), net.weight(more, scale=0.1))
        net.add("Gemm", (x, *own), (more,), transB=1)
    elif kind == 3:
        net.add(net.one_of(*_OF_ROWS), (x,), shape)
    elif kind == 4 and width > 1:
        own = (net.positive(width), net.weight(width, scale=0.1))
        net.add("LayerNormalization", (x, *own), shape)
    elif kind == 5 and width > 1:
        net.add(net.one_of("Softmax", "LogSoftmax"), (x,), shape)
    elif kind == 6:
        net.add(net.one_of("Add", "Mul", "Sub", "Max", "Min"), (x, net.value(1, width)[0]), shape)
    elif kind == 7:
        y, other = net.value(1)
        net.add("Concat", (x, y), (width + other[0],), axis=1)
    elif kind == 8 and width > 1:
        net.split(x, shape)
    elif kind == 9:
        net.add("Gather", (x, net.constant(*net.random.integers(0, width, 5))), (5,), axis=1)
    elif width % 4 == 0:  # attention of four positions to each other
        rows = net.add("Reshape", (x, net.constant(0, 4, width // 4)), None)
        across = net.add("MatMul", (rows, net.add("Transpose", (rows,), None, perm=[0, 2, 1])), None)
        mixed = net.add("MatMul", (net.add("Softmax", (across,), None), rows), None)
        net.add("Reshape", (mixed, net.constant(0, width)), shape)


def random_net(seed: int) -> tuple[TrainingArtifacts, Shape]:
    """Artifacts of a net some or all of whose parameters train, and the shape of one of its samples."""
    random = np.random.default_rng(seed)
    images = random.random() < 0.6
    given = (int(random.choice((1, 3))), int(random.choice((6, 8, 9))), 8) if images else (8,)
    net = Net(random, given)
    for _ in range(random.integers(4, 20)):
        rows = any(len(shape) == 1 for _, shape in net.values)
        (row_step if rows and random.random() < 0.5 else image_step if images else row_step)(net)
    if all(len(shape) > 1 for _, shape in net.values):
        x, shape = net.value(3)
        net.add("ReduceMean", (x, net.constant(2, 3)), shape[:1], keepdims=0)
    x, (width,) = net.value(1)
    out = net.add("Gemm", (x, net.weight(CLASSES, width), net.weight(CLASSES, scale=0.1)), None, transB=1)
    graph = helper.make_graph(
        net.nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *given])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(a, n) for n, a in net.arrays.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    onnx.checker.check_model(proto)
    last = [n for n in net.arrays if n.startswith("w")][-2:]
    train = () if random.random() < 0.6 else tuple(last)
    source = Source(read_model(proto, Path("model.onnx")), opset_in(proto), Path("model.onnx"))
    return artifacts_of(
        source, Recipe(loss="mse", optimizer="sgd", train=train, outputs=(out,)), REGISTRY
    ), given


def compared(
    made: TrainingArtifacts, shape: Shape, model: CompiledModel, library: Library, seed: int = 3
) -> None:
    """Asserts that evaluations, losses and gradients of `model`, planned of `made` and built into `library`, are those
    of the interpreter, as near as it comes to itself in single precision; for batches of several sizes."""
    random, trainers = np.random.default_rng(seed), Beside(made, model, library, LARGEST)
    for count in (LARGEST, 3, 1):
        feeds = [random.standard_normal((count, *s)).astype(np.float32) for s in (shape, (CLASSES,))]
        for one, other, single in zip(*trainers.step(feeds), strict=True):
            far = distance(one, other)
            assert far < _NEAR + 8 * distance(single, other), f"differs by {far:.1e} with {count} samples"
