"""A small model whose products and convolutions are large enough to be packed, and whose normalizations are large
enough to be divided among threads, as in none of the artifact sets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from authored import FORWARD  # noqa: F401  (puts the golden models on the path)
from forward import FLOAT, Net

from minbuild.authoring import Recipe, make_artifacts, write_artifacts

SIZE, CLASSES = 36, 10
SEQUENCE = (3, 299, 231)  # steps, features, units
ROWS = (263, 131)  # rows and their lengths
POOLED = (3, 23, 63)
NARROW = (963, 7, 7)  # channels, and images that are read where they are
WINDOWS = (9, 9, 7)
FILTERS = (7, 15, 13)
GROUPS = (45, 15, 14)
POINTS = (35, 12, 11)
PLACES = (203, 331)  # and their features
PACKED = frozenset({"gemm_packed", "conv_packed", "winograd_conv_packed"})
FLOAT16, BFLOAT16 = onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16


def packed_model() -> onnx.ModelProto:
    """Five convolutions, one with a filter per channel and one with strides, two normalizations, and a dense layer,
    with odd sizes: remainders of every block."""
    net = Net(8)
    x = net.add("Relu", [net.norm(net.conv("input", "conv1", (9, 43)), "norm1", 43)])
    x = net.add("Relu", [net.conv(x, "mixed", (43, 41))])
    x = net.add("Relu", [net.conv(x, "last", (41, 43))])
    x = net.add("Relu", [net.conv(x, "filters", (43, 43), groups=43)])
    x = net.conv(x, "conv2", (43, 47), stride=2)
    for name in ("norm2.weight", "norm2.bias"):
        net.weights[name] = net.rng.uniform(0.5, 1.5, (SIZE // 2, SIZE // 2)).astype(np.float32)
    x = net.add("Relu", [net.add("LayerNormalization", [x, "norm2.weight", "norm2.bias"], axis=2)])
    x = net.add("AveragePool", [x], kernel_shape=[9, 9], strides=[9, 9])
    x = net.add("Relu", [net.linear(net.add("Flatten", [x], axis=1), "fc1", 47 * 4, 201)])
    net.linear(x, "fc2", 201, CLASSES, "output")
    return net.model({"input": (FLOAT, ("batch", 9, SIZE, SIZE))}, {"output": (FLOAT, ("batch", CLASSES))})


def recurrent_model() -> onnx.ModelProto:
    """Recurrent layers of each kind, of a size that is packed."""
    net, (_, features, hidden) = Net(8), SEQUENCE
    x = net.add("Transpose", ["input"], perm=[1, 0, 2])
    net.weights["axis"] = np.array([1], np.int64)
    net.frozen.add("axis")
    for kind, gates, others in (
        ("LSTM", 4, {}),
        ("GRU", 3, {"linear_before_reset": 1}),
        ("GRU", 3, {}),
        ("RNN", 1, {}),
    ):
        name = f"{kind.lower()}{len(others)}"
        shapes = {
            "w": (1, gates * hidden, features),
            "r": (1, gates * hidden, hidden),
            "b": (1, 2 * gates * hidden),
        }
        weights = [net.weight(f"{name}.{part}", shape, hidden) for part, shape in shapes.items()]
        if kind == "LSTM":
            weights[:2] = [in_order_of_pytorch(net, weight, hidden) for weight in weights[:2]]
        net.add(kind, [x, *weights], [f"{name}.y", f"{name}.last"], hidden_size=hidden, **others)
        x, last, features = net.add("Squeeze", [f"{name}.y", "axis"]), f"{name}.last", hidden
    net.linear(net.add("Reshape", [last, "rows"]), "fc", hidden, CLASSES, "output")
    net.weights["rows"] = np.array([-1, hidden], np.int64)
    net.frozen.add("rows")
    return net.model({"input": (FLOAT, ("batch", *SEQUENCE[:2]))}, {"output": (FLOAT, ("batch", CLASSES))})


def in_order_of_pytorch(net: Net, weight: str, hidden: int) -> str:
    """The gates of a weight [1, 4 * hidden, ...] in the order of ONNX, from that of PyTorch's layers."""
    net.weights["gates"] = np.array([hidden, 2 * hidden, hidden], np.int64)
    net.frozen.add("gates")
    first, between, last = pieces = [f"{weight}.{i}" for i in range(3)]
    net.add("Split", [weight, "gates"], pieces, axis=1)
    return net.add("Concat", [first, last, between], axis=1)


def half_model() -> onnx.ModelProto:
    """Layers whose weights and activations are rounded to float16 and to bfloat16, with odd sizes and rows that start
    between words."""
    net, x, depth = Net(8), "input", SIZE
    for element, wide in ((FLOAT16, 145), (BFLOAT16, 131)):
        weight = net.add("Cast", [net.weight(f"w{element}", (depth, wide), depth)], to=element)
        product = net.add("MatMul", [net.add("Cast", [x], to=element), weight])
        x, depth = net.add("Tanh", [net.add("Cast", [product], to=FLOAT)]), wide
    net.linear(x, "fc", depth, CLASSES, "output")
    return net.model({"input": (FLOAT, ("batch", SIZE))}, {"output": (FLOAT, ("batch", CLASSES))})


def rows_model() -> onnx.ModelProto:
    """Normalizations, a softmax and GELUs of rows that several are computed of at once, with odd sizes."""
    net, (rows, length) = Net(8), ROWS
    for name, value in (("root", 2**0.5), ("one", 1.0), ("half", 0.5)):
        net.weights[name] = np.array(value, np.float32)
        net.frozen.add(name)
    scale, bias = net.weight("norm.weight", (length,), 1), net.weight("norm.bias", (length,), 1)
    x = net.add("LayerNormalization", ["input", scale, bias], axis=-1)
    below = net.add("Add", [net.add("Erf", [net.add("Div", [x, "root"])]), "one"])
    x = net.add("Softmax", [net.add("Mul", [net.add("Mul", [x, below]), "half"])], axis=-1)
    x = net.add("Mul", [x, net.weight("factor", (rows, length), 1)])
    net.linear(net.add("ReduceMean", [x], axes=[1], keepdims=0), "fc", length, CLASSES, "output")
    return net.model({"input": (FLOAT, ("batch", rows, length))}, {"output": (FLOAT, ("batch", CLASSES))})


def narrow_model() -> onnx.ModelProto:
    """Two convolutions with a filter per channel over images with rows of one vector."""
    net, channels = Net(8), NARROW[0]
    x = net.add("Relu", [net.conv("input", "conv1", (channels, channels), groups=channels)])
    x = net.add("Relu", [net.conv(x, "conv2", (channels, channels), groups=channels, bias=False)])
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x])], axis=1)
    net.linear(x, "fc", channels, CLASSES, "output")
    return net.model({"input": (FLOAT, ("batch", *NARROW))}, {"output": (FLOAT, ("batch", CLASSES))})


def pooled_model() -> onnx.ModelProto:
    """Max pooling with windows that overlap, reach over the rim, are spread out and leave elements out, rows of whole
    vectors of windows, and dense layers whose depth is no whole number of vectors."""
    net, channels = Net(8), 7
    x = net.conv("input", "conv", (POOLED[0], channels))
    x = net.add("MaxPool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 2])
    x = net.add("MaxPool", [x], kernel_shape=[2, 3], pads=[1, 2, 1, 2], dilations=[1, 2])
    x = net.add("MaxPool", [x], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 0, 0])
    x = net.add("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 3])
    x = net.add("Relu", [net.linear(net.add("Flatten", [x], axis=1), "fc1", channels * 6 * 11, 43)])
    net.linear(x, "fc2", 43, CLASSES, "output")
    return net.model({"input": (FLOAT, ("batch", *POOLED))}, {"output": (FLOAT, ("batch", CLASSES))})


def windows_model() -> onnx.ModelProto:
    """Convolutions with eight channels and more, whose windows keep the size of images, with pads on both sides and on
    one, with dilations, and others that do not keep it, with odd numbers of channels, and small images."""
    net, x, channels = Net(8), "input", WINDOWS[0]
    layers: tuple[tuple[int, tuple[int, int], int, list[int], dict[str, list[int]]], ...] = (
        (10, (3, 3), 1, [1, 1, 1, 1], {}),
        (9, (5, 3), 1, [2, 1, 2, 1], {}),
        (17, (3, 3), 1, [2, 2, 2, 2], {"dilations": [2, 2]}),
        (8, (2, 2), 1, [0, 1, 1, 0], {}),
        (22, (1, 5), 2, [0, 4, 0, 0], {}),
        (11, (3, 3), 1, [0, 1, 0, 1], {}),
        (13, (3, 3), 1, [1, 1, 1, 1], {"strides": [2, 1]}),
    )
    for number, (filters, kernel, groups, pads, steps) in enumerate(layers):
        weights = [net.weight(f"conv{number}.weight", (filters, channels // groups, *kernel), 9 * channels)]
        weights += [net.weight(f"conv{number}.bias", (filters,), 9 * channels)] if number % 2 else []
        x = net.add("Conv", [x, *weights], kernel_shape=kernel, group=groups, pads=pads, **steps)
        x = net.add("Tanh", [x])
        channels = filters
    net.linear(net.add("Flatten", [x], axis=1), "fc", channels * 4 * 7, CLASSES, "output")
    return net.model({"input": (FLOAT, ("batch", *WINDOWS))}, {"output": (FLOAT, ("batch", CLASSES))})


def filters_model() -> onnx.ModelProto:
    """Convolutions with one filter per channel, whose windows move by one element or two, with pads on both sides and
    on one, with dilations, and batch normalizations, of images down to rows shorter than a vector."""
    net, x, channels = Net(8), "input", FILTERS[0]
    layers: tuple[tuple[tuple[int, int], list[int], dict[str, list[int]]], ...] = (
        ((3, 3), [1, 1, 1, 1], {}),
        ((2, 5), [0, 2, 1, 2], {}),
        ((3, 3), [2, 1, 2, 1], {"dilations": [2, 1]}),
        ((3, 3), [1, 1, 1, 1], {"strides": [2, 2]}),  # to 8 x 7
        ((5, 1), [2, 0, 2, 0], {}),
        ((3, 3), [1, 1, 1, 1], {"strides": [1, 2]}),  # to 8 x 4
        ((3, 3), [1, 1, 1, 1], {}),
        ((2, 2), [0, 0, 0, 0], {}),  # to 7 x 3
        ((3, 3), [1, 1, 1, 1], {}),
        ((3, 2), [0, 1, 0, 0], {"strides": [3, 1]}),  # to 2 x 3
        ((3, 3), [1, 1, 1, 1], {"strides": [1, 2]}),  # to 2 x 2
        ((3, 3), [1, 1, 1, 1], {}),
    )
    for number, (kernel, pads, steps) in enumerate(layers):
        weights = [net.weight(f"conv{number}.weight", (channels, 1, *kernel), 9)]
        weights += [net.weight(f"conv{number}.bias", (channels,), 9)] if number % 2 else []
        x = net.add("Conv", [x, *weights], kernel_shape=kernel, group=channels, pads=pads, **steps)
        x = net.add("Tanh", [net.norm(x, f"norm{number}", channels)])
    net.linear(net.add("Flatten", [x], axis=1), "fc", channels * 2 * 2, CLASSES, "output")
    return net.model({"input": (FLOAT, ("batch", *FILTERS))}, {"output": (FLOAT, ("batch", CLASSES))})


def groups_model() -> onnx.ModelProto:
    """Convolutions of real size in groups, and with filters of five and of seven rows per channel."""
    net, x, channels = Net(8), "input", GROUPS[0]
    layers: tuple[tuple[int, int, int, int], ...] = (  # filters, groups, the side of windows, their step
        (45, 45, 7, 1),
        (54, 9, 3, 1),
        (290, 1, 1, 1),
        (290, 290, 5, 2),  # to 8 x 7
        (290, 290, 5, 1),
        (290, 290, 7, 1),
        (290, 10, 3, 2),  # to 4 x 4
    )
    for number, (filters, groups, side, step) in enumerate(layers):
        of_filter = channels // groups
        weights = [net.weight(f"conv{number}.weight", (filters, of_filter, side, side), of_filter * side**2)]
        weights += [net.weight(f"conv{number}.bias", (filters,), 9)] if number % 2 else []
        pads, window = [side // 2] * 4, [side] * 2
        x = net.add("Conv", [x, *weights], kernel_shape=window, group=groups, pads=pads, strides=[step] * 2)
        x, channels = net.add("Tanh", [x]), filters
    net.linear(net.add("Flatten", [x], axis=1), "fc", channels * 4 * 4, CLASSES, "output")
    return net.model({"input": (FLOAT, ("batch", *GROUPS))}, {"output": (FLOAT, ("batch", CLASSES))})


def points_model() -> onnx.ModelProto:
    """Windows of one element over images that are multiplied where they are, in groups too."""
    net, x, channels = Net(8), "input", POINTS[0]
    for number, (filters, groups) in enumerate(((179, 1), (183, 1), (62, 1), (94, 2), (33, 1))):
        x = net.conv(x, f"conv{number}", (channels, filters), kernel=1, groups=groups, bias=number % 2 == 0)
        x, channels = net.add("Tanh", [net.norm(x, f"norm{number}", filters)]), filters
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x])], axis=1)
    net.linear(x, "fc", channels, CLASSES, "output")
    return net.model({"input": (FLOAT, ("batch", *POINTS))}, {"output": (FLOAT, ("batch", CLASSES))})


def adapters_model() -> onnx.ModelProto:
    """Layers over many places with adapters of low rank beside them, and a head of few columns for each place."""
    net, x, features = Net(8), "input", PLACES[1]
    for number, (units, rank) in enumerate(((347, 8), (333, 9))):
        weights = [
            net.weight(f"{name}{number}", shape, features)
            for name, shape in (
                ("base", (features, units)),
                ("down", (features, rank)),
                ("up", (rank, units)),
            )
        ]
        base, down = (net.add("MatMul", [x, weight]) for weight in weights[:2])
        x = net.add("Tanh", [net.add("Add", [base, net.add("MatMul", [down, weights[2]])])])
        features = units
    x = net.add("MatMul", [x, net.weight("head", (features, CLASSES), features)])
    net.add("ReduceMean", [x], ["output"], axes=[1], keepdims=0)
    return net.model({"input": (FLOAT, ("batch", *PLACES))}, {"output": (FLOAT, ("batch", CLASSES))})


def packed_artifacts(folder: Path, name: str = "packed") -> Path:
    """The training artifacts of one of MODELS, in `folder`."""
    onnx.save(MODELS[name][0](), folder / f"{name}.onnx")
    made = make_artifacts(folder / f"{name}.onnx", Recipe(loss="cross-entropy", optimizer="adamw"))
    write_artifacts(made, folder / name)
    return folder / name


def packed_set(folder: Path, samples: int = 17, name: str = "packed") -> Path:
    """The artifacts with a batch, of as many samples as packing takes, in the form of an artifact set."""
    path, random = packed_artifacts(folder, name), np.random.default_rng(9)
    x = random.standard_normal((samples, *MODELS[name][1])).astype(np.float32)
    batch = {"input": x, "labels": random.integers(0, CLASSES, samples)}
    arrays = {f"in/{name}": x[None] for name, x in batch.items()}
    arrays |= {f"eval_in/{name}": x for name, x in batch.items()}
    np.savez(path / "reference.npz", **arrays)
    (path / "meta.json").write_text(json.dumps({"n_batches": 1, "lr": 0.001}))
    return path


# The models and the shapes of their samples.
MODELS = {
    "packed": (packed_model, (9, SIZE, SIZE)),
    "recurrent": (recurrent_model, SEQUENCE[:2]),
    "halves": (half_model, (SIZE,)),
    "rows": (rows_model, ROWS),
    "narrow": (narrow_model, NARROW),
    "pools": (pooled_model, POOLED),
    "windows": (windows_model, WINDOWS),
    "filters": (filters_model, FILTERS),
    "groups": (groups_model, GROUPS),
    "adapters": (adapters_model, PLACES),
    "points": (points_model, POINTS),
}
