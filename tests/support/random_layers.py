"""Random layers of the sizes of real networks: what packed, wide and divided kernels are chosen for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from beside_interpreter import Beside
from onnx import TensorProto, helper, numpy_helper
from random_nets import Net, Shape

from minbuild.authoring import Recipe, Source, artifacts_of
from minbuild.frontend.onnx.reader import opset_in, read_model
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry
from minbuild.planning.compiled_model import CompiledModel
from minbuild.training.library import Library

REGISTRY = registry()
OPSET = 20
WORK = 3e7  # multiplications of one forward pass at most: the interpreter does them in double precision
_NEAR = 4e-6  # of the largest number: rounding of long sums, and what transforms of Winograd cost
_WIDTHS = (3, 7, 16, 24, 32, 48, 61, 64, 96, 128, 192, 197, 256, 384, 512)


@dataclass(frozen=True, slots=True)
class Layer:
    """Shape of a sample of x and of what the layer makes of it, and the number of samples."""

    name: str
    x: Shape
    y: Shape
    batch: int
    free: bool  # the number of samples may be less

    @property
    def largest(self) -> dict[str, int]:
        return {"N": self.batch} if self.free else {}


def _given(net: Net, shape: Shape) -> str:
    """The input plus a parameter, whose gradient is that of the input summed over samples. The sum is exact."""
    net.values[:] = [("x", shape)]
    shift = net.hold("w", _exact(net.random, shape))
    return net.add("Add", ("x", shift), None)


def _exact(random: np.random.Generator, shape: Shape) -> np.ndarray:
    """Numbers whose sums round nothing: elements that differ do so in single precision as well."""
    return (np.round(random.standard_normal(shape) * 256) / 256).astype(np.float32)


def _one(random: np.random.Generator, *numbers: int) -> int:
    return int(random.choice(numbers))


def _window(random: np.random.Generator, axes: int) -> Shape:
    size = _one(random, 1, 2, 3, 3, 3, 4, 5, 7)
    return (size,) * axes if random.random() < 0.8 else tuple(int(n) for n in random.integers(1, 6, axes))


def _groups(random: np.random.Generator) -> tuple[int, int, int]:
    """Channels, filters and groups."""
    kind = random.integers(5)
    if kind == 0:
        channels = int(random.integers(1, 300))
        return channels, channels * _one(random, 1, 1, 1, 2), channels
    if kind == 1:
        groups, own = int(random.integers(2, 40)), _one(random, 1, 2, 3, 4, 8, 16, 32)
        return groups * own, groups * _one(random, own, own, own, 2 * own, 5), groups
    return int(random.integers(1, 260)), int(random.integers(1, 260)), 1


def _convolution(net: Net, random: np.random.Generator) -> tuple[str, Shape]:
    """Over one axis or two. The size of the image follows from the work."""
    axes = 1 if random.random() < 0.15 else 2
    channels, filters, groups = _groups(random)
    window, size = _window(random, axes), _one(random, 5, 7, 8, 14, 17, 28, 31, 56)
    strides, dilations = ((_one(random, 1, 1, 1, 2, 3),) * axes, (_one(random, 1, 1, 1, 1, 2),) * axes)
    reach = [(w - 1) * d for w, d in zip(window, dilations, strict=True)]
    pads = [r // 2 for r in reach] * 2
    if random.random() < 0.3:
        pads = [int(random.integers(0, r + 1)) for r in (*reach, *reach)]
    work = filters * channels // groups * np.prod(window)
    while work * size**axes > WORK and size > 5:
        size = size * 2 // 3
    image = tuple(max(size + int(random.integers(-1, 2)), r + 1) for r in reach)
    ends = [n + pads[i] + pads[i + axes] - reach[i] for i, n in enumerate(image)]
    made = tuple((n - 1) // s + 1 for n, s in zip(ends, strides, strict=True))
    x = _given(net, (channels, *image))
    bias = (net.weight(filters, scale=0.1),) if random.random() < 0.6 else ()
    weights = net.weight(filters, channels // groups, *window)
    attributes = {"kernel_shape": window, "strides": strides, "pads": pads, "dilations": dilations}
    return net.add("Conv", (x, weights, *bias), None, group=groups, **attributes), (filters, *made)


def _transposed(net: Net, random: np.random.Generator) -> tuple[str, Shape]:
    channels, filters, size, stride = (
        *random.integers(1, 100, 2),
        *random.integers(3, 17, 1),
        _one(random, 1, 2, 3),
    )
    channels, filters, size, window = int(channels), int(filters), int(size), _one(random, 2, 3, 4)
    x = _given(net, (channels, size, size))
    made = stride * (size - 1) + window
    weights = net.weight(channels, filters, window, window)
    y = net.add("ConvTranspose", (x, weights), None, kernel_shape=[window] * 2, strides=[stride] * 2)
    return y, (filters, made, made)


def _dense(net: Net, random: np.random.Generator) -> tuple[str, Shape]:
    """A product with weights, transposed or not, of a vector or of rows, and perhaps an activation."""
    depth, width = (_one(random, *_WIDTHS) + _one(random, 0, 0, 0, 1, -1) for _ in range(2))
    bias = net.weight(width, scale=0.1)
    if random.random() < 0.5:
        turned = int(random.random() < 0.5)
        weights = net.weight(*((width, depth) if turned else (depth, width)), scale=depth**-0.5)
        x = _given(net, (depth,))
        y, shape = net.add("Gemm", (x, weights, bias), None, transB=turned), (width,)
    else:
        rows = int(random.integers(1, 140))
        x = _given(net, (rows, depth))
        weights, shape = net.weight(depth, width, scale=depth**-0.5), (rows, width)
        y = net.add("Add", (net.add("MatMul", (x, weights), None), bias), None)
    if random.random() < 0.5:
        y = net.add(net.one_of("Gelu", "Tanh", "Sigmoid"), (y,), None)
    return y, shape


def _attention(net: Net, random: np.random.Generator) -> tuple[str, Shape]:
    """Heads as PyTorch writes them: each projection is reshaped and transposed."""
    heads, size, rows = (
        _one(random, 1, 2, 3, 4, 6),
        _one(random, 8, 16, 20, 32, 64),
        int(random.integers(2, 140)),
    )
    width = heads * size
    x = _given(net, (rows, width))

    def projected(order: list[int]) -> str:
        own = (net.weight(width, width), net.weight(width, scale=0.1))
        made = net.add("Add", (net.add("MatMul", (x, own[0]), None), own[1]), None)
        split = net.add("Reshape", (made, net.constant(0, 0, heads, size)), None)
        return net.add("Transpose", (split,), None, perm=order)

    scale = net.hold("k", np.array(size**-0.5, np.float32))
    scores = net.add("MatMul", (projected([0, 2, 1, 3]), projected([0, 2, 3, 1])), None)
    chances = net.add("Softmax", (net.add("Mul", (scores, scale), None),), None, axis=-1)
    mixed = net.add("MatMul", (chances, projected([0, 2, 1, 3])), None)
    back = net.add("Transpose", (mixed,), None, perm=[0, 2, 1, 3])
    return net.add("Reshape", (back, net.constant(0, 0, width)), None), (rows, width)


def _recurrent(net: Net, random: np.random.Generator) -> tuple[str, Shape]:
    kind, hidden, given = (
        net.one_of("LSTM", "GRU", "RNN"),
        int(random.integers(4, 150)),
        int(random.integers(3, 130)),
    )
    steps, gates = int(random.integers(1, 12)), {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    direction = net.one_of("forward", "forward", "reverse", "bidirectional")
    count = 2 if direction == "bidirectional" else 1
    x = _given(net, (steps, given))
    turned = net.add("Transpose", (x,), None, perm=[1, 0, 2])
    sizes = ((count, gates * hidden, given), (count, gates * hidden, hidden), (count, 2 * gates * hidden))
    own = [net.weight(*shape, scale=hidden**-0.5) for shape in sizes]
    more = {"linear_before_reset": int(random.integers(2))} if kind == "GRU" else {}
    y = net.add(kind, (turned, *own), None, hidden_size=hidden, direction=direction, **more)
    first = net.add("Transpose", (y,), None, perm=[2, 0, 1, 3])
    return net.add("Reshape", (first, net.constant(0, 0, count * hidden)), None), (steps, count * hidden)


def _rows(net: Net, random: np.random.Generator) -> tuple[str, Shape]:
    rows, width = int(random.integers(1, 300)), int(random.integers(2, 700))
    x = _given(net, (rows, width))
    kind = net.one_of("Softmax", "LogSoftmax", "LayerNormalization", "Gelu", "RMS")
    if kind == "LayerNormalization":
        own = (net.positive(width), net.weight(width, scale=0.1))
        return net.add(kind, (x, *own), None, epsilon=1e-5), (rows, width)
    if kind == "RMS":
        mean = net.add("ReduceMean", (net.add("Mul", (x, x), None), net.constant(-1)), None)
        root = net.add(
            "Sqrt", (net.add("Add", (mean, net.hold("k", np.array(1e-5, np.float32))), None),), None
        )
        return net.add("Mul", (net.add("Div", (x, root), None), net.positive(width)), None), (rows, width)
    if kind == "Gelu":
        kinds = {"approximate": net.one_of("none", "tanh")}
        return net.add("Gelu", (x,), None, **kinds), (rows, width)
    return net.add(kind, (x,), None, axis=int(random.choice((-1, -1, 1)))), (rows, width)


def _images(net: Net, random: np.random.Generator) -> tuple[str, Shape]:
    """Pools and normalizations."""
    channels, size = int(random.integers(1, 130)), int(random.integers(4, 40))
    shape = (channels, size, size)
    x = _given(net, shape)
    kind = net.one_of("MaxPool", "AveragePool", "BatchNormalization", "InstanceNormalization")
    own = (net.positive(channels), net.weight(channels, scale=0.1))
    if kind == "InstanceNormalization":
        return net.add(kind, (x, *own), None), shape
    if kind == "BatchNormalization":
        own = (*own, net.weight(channels, scale=0.1), net.positive(channels))
        if random.random() < 0.3:
            return net.add(kind, (x, *own), None), shape
        net.nodes.append(helper.make_node(kind, [x, *own], ["t", "mean", "var"], name="n", training_mode=1))
        return "t", shape
    window, stride = _one(random, 2, 3), _one(random, 1, 2, 3)
    pad = window // 2 if random.random() < 0.5 else 0
    made = (size + 2 * pad - window) // stride + 1
    attributes = {"kernel_shape": [window] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    return net.add(kind, (x,), None, **attributes), (channels, made, made)


_KINDS: tuple[Callable[[Net, np.random.Generator], tuple[str, Shape]], ...] = (
    *(_convolution,) * 6,
    *(_dense,) * 2,
    *(_recurrent,) * 2,
    _transposed,
    _attention,
    _rows,
    _images,
)


def random_layer(seed: int) -> tuple[TrainingArtifacts, Layer]:
    """Artifacts of one layer, with the gradient of its input, and whose loss has a target for every element."""
    random = np.random.default_rng(seed)
    net = Net(random, ())
    kind = _KINDS[random.integers(len(_KINDS))]
    out, y = kind(net, random)
    x = net.values[0][1]
    batch, free = _one(random, 1, 2, 3, 5, 8), bool(random.random() < 0.5)
    count = "N" if free else batch
    graph = helper.make_graph(
        net.nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [count, *x])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, [count, *y])],
        [numpy_helper.from_array(a, n) for n, a in net.arrays.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    onnx.checker.check_model(proto, full_check=True)
    path = Path("model.onnx")
    recipe = Recipe(loss="mse", optimizer="sgd", outputs=(out,))
    made = artifacts_of(Source(read_model(proto, path), opset_in(proto), path), recipe, REGISTRY)
    return made, Layer(kind.__name__.strip("_"), x, y, batch, free)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, relative to the largest number of `other`."""
    return float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-30))


def compared(
    made: TrainingArtifacts, layer: Layer, model: CompiledModel, library: Library, seed: int = 3
) -> None:
    """Asserts that the output, the loss and all gradients of `model`, planned of `made` and built into `library`, are
    those of the interpreter, as near as it comes to itself in single precision; for batches of several sizes."""
    random, trainers = np.random.default_rng(seed), Beside(made, model, library, layer.batch)
    for count in sorted({layer.batch, 1} if layer.free else {layer.batch}, reverse=True):
        feeds = [_exact(random, (count, *s)) for s in (layer.x, layer.y)]
        for one, other, single in zip(*trainers.step(feeds), strict=True):
            far = distance(one, other)
            assert far < _NEAR + 8 * distance(single, other), (
                f"{layer}: differs by {far:.1e} with {count} samples"
            )
