"""Small models whose weights are quantized in every way that is read in place: shared by tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from minbuild.authoring import Recipe, make_artifacts, write_artifacts
from minbuild.authoring.recipe import LoraOptions

Models = Mapping[str, tuple[Callable[[Path], Path], Recipe]]
LORA = Recipe(loss="cross-entropy", lora=LoraOptions(("*.q",), 2))
CLASSES = 4


def tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def saved(
    folder: Path,
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    shape: tuple[int, ...],
    opset: int = 21,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", CLASSES])],
        weights,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


def quantized(
    name: str, random: np.random.Generator, shape: tuple[int, ...], kind: str
) -> tuple[list[onnx.TensorProto], dict[str, int]]:
    """Codes, scales and zero points of a weight under `name`, and the attributes of its DequantizeLinear."""
    unsigned = kind.startswith("u")
    bits = next((b for b in (4, 16) if str(b) in kind), 8)
    dtype = np.dtype(f"{'u' * unsigned}int{max(bits, 8)}")
    low, high = (0, 1 << bits) if unsigned else (-(1 << bits - 1), 1 << bits - 1)
    codes = random.integers(low, high, shape)
    attributes: dict[str, int] = {}
    scales: tuple[int, ...] = ()
    if "rows" in kind:
        scales, attributes = (shape[0],), {"axis": 0}
    elif "columns" in kind:
        scales, attributes = (shape[1],), {"axis": 1}
    elif "blocks" in kind:
        scales, attributes = (shape[0], shape[1] // 16), {"axis": 1, "block_size": 16}
    scale = random.uniform(0.5, 1, scales).astype(np.float32) / (high - low) / 4
    zero = random.integers(low, high, scales) if "zeros" in kind else np.full(scales, (low + high) // 2)
    if "float8" in kind:
        numbers = {"q": random.standard_normal(shape) * 60, "zero": np.zeros(scales)}
        stored = [
            helper.make_tensor(
                f"{name}.{n}", TensorProto.FLOAT8E4M3FN, a.shape, _float8(a).tobytes(), raw=True
            )
            for n, a in numbers.items()
        ]
    elif bits > 4:
        stored = [tensor(f"{name}.q", codes.astype(dtype)), tensor(f"{name}.zero", zero.astype(dtype))]
    else:
        element = TensorProto.UINT4 if unsigned else TensorProto.INT4
        stored = [
            helper.make_tensor(f"{name}.{n}", element, a.shape, a.ravel())
            for n, a in (("q", codes), ("zero", np.asarray(zero)))
        ]
    return [*stored, tensor(f"{name}.scale", scale)], attributes


def _float8(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.float8_e4m3fn)


def dense(folder: Path, kind: str, sizes: tuple[int, ...]) -> Path:
    """Layers as torch and ONNX Runtime quantise them: the second and later ones with transposed weights."""
    random = np.random.default_rng(3)
    nodes, weights, x = [], [], "x"
    for i, (depth, columns) in enumerate(zip(sizes, sizes[1:], strict=False)):
        name, shape = f"w{i}", (depth, columns) if i == 0 else (columns, depth)
        found, attributes = quantized(name, random, shape, kind)
        weights += [*found, tensor(f"b{i}", random.standard_normal(columns).astype(np.float32))]
        inputs = [f"{name}.q", f"{name}.scale", f"{name}.zero"]
        nodes.append(helper.make_node("DequantizeLinear", inputs, [name], **attributes))
        y = "y" if i == len(sizes) - 2 else f"h{i}"
        if i == 0:
            nodes.append(helper.make_node("MatMul", [x, name], [f"{y}/product"]))
            nodes.append(helper.make_node("Add", [f"{y}/product", f"b{i}"], [y]))
        else:
            nodes.append(helper.make_node("Gemm", [x, name, f"b{i}"], [y], transB=1))
        if y != "y":
            nodes.append(helper.make_node("Relu", [y], [f"a{i}"]))
            x = f"a{i}"
    return saved(folder, nodes, weights, sizes[:1])


def packed(folder: Path, operator: str, sizes: tuple[int, ...]) -> Path:
    """Layers of ONNX Runtime's own operators for four-bit weights."""
    random = np.random.default_rng(4)
    nodes, weights, x = [], [], "x"
    for i, (depth, columns) in enumerate(zip(sizes, sizes[1:], strict=False)):
        blocks = -(-depth // 32)
        codes = random.integers(0, 256, (columns, blocks, 16)).astype(np.uint8)
        attributes = {"N": columns, "K": depth, "block_size": 32}
        inputs = [x, f"w{i}.q", f"w{i}.scale"]
        scale = (random.uniform(0.5, 1, columns * blocks) / 32).astype(np.float32)
        weights.append(tensor(f"w{i}.scale", scale))
        if operator == "MatMulBnb4":
            attributes["quant_type"] = 1
            codes = codes.ravel()
        else:
            attributes["bits"] = 4
            inputs.append(f"w{i}.zero")
            zeros = random.integers(0, 256, columns * -(-blocks // 2)).astype(np.uint8)
            weights.append(tensor(f"w{i}.zero", zeros))
        weights.append(tensor(f"w{i}.q", codes))
        y = "y" if i == len(sizes) - 2 else f"h{i}"
        nodes.append(helper.make_node(operator, inputs, [y], domain="com.microsoft", **attributes))
        if y != "y":
            nodes.append(helper.make_node("Relu", [y], [f"a{i}"]))
            x = f"a{i}"
    return saved(folder, nodes, weights, sizes[:1])


def images(folder: Path, kind: str) -> Path:
    """Convolutions: plain, grouped, pointwise."""
    random = np.random.default_rng(5)
    nodes, weights, x = [], [], "x"
    layers = (
        ((6, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((24, 3, 3, 3), {"group": 2, "strides": [2, 2]}),
        ((CLASSES, 24, 1, 1), {}),
    )
    for i, (shape, flags) in enumerate(layers):
        found, attributes = quantized(f"w{i}", random, shape, kind)
        weights += found
        inputs = [f"w{i}.q", f"w{i}.scale", f"w{i}.zero"]
        nodes.append(helper.make_node("DequantizeLinear", inputs, [f"w{i}"], **attributes))
        nodes.append(helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"], **flags))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"a{i}"]))
        x = f"a{i}"
    nodes += [helper.make_node("GlobalAveragePool", [x], ["p"]), helper.make_node("Flatten", ["p"], ["y"])]
    weights.append(tensor("shift", np.zeros((3, 1, 1), np.float32)))
    nodes.insert(0, helper.make_node("Add", ["x", "shift"], ["shifted"]))
    nodes[2] = helper.make_node("Conv", ["shifted", "w0"], ["c0"], pads=[1, 1, 1, 1])
    return saved(folder, nodes, weights, (3, 9, 9))


def pooled(folder: Path, kind: str) -> Path:
    """Convolutions of one filter a channel, and of images of one element."""
    random = np.random.default_rng(10)
    nodes, weights, x = [helper.make_node("Add", ["x", "shift"], ["shifted"])], [], "shifted"
    layers = (
        ((72, 3, 1, 1), {}, "Relu"),
        ((72, 1, 3, 3), {"group": 72, "pads": [1, 1, 1, 1]}, "GlobalAveragePool"),
        ((20, 72, 1, 1), {}, "Relu"),
        ((CLASSES, 20, 1, 1), {}, "Flatten"),
    )
    for i, (shape, flags, then) in enumerate(layers):
        found, attributes = quantized(f"w{i}", random, shape, kind)
        weights += found
        inputs = [f"w{i}.q", f"w{i}.scale", f"w{i}.zero"]
        nodes.append(helper.make_node("DequantizeLinear", inputs, [f"w{i}"], **attributes))
        nodes.append(helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"], **flags))
        x = "y" if then == "Flatten" else f"a{i}"
        nodes.append(helper.make_node(then, [f"c{i}"], [x]))
    weights.append(tensor("shift", np.zeros((3, 1, 1), np.float32)))
    return saved(folder, nodes, weights, (3, 9, 9))


def large_images(folder: Path, kind: str) -> Path:
    """A convolution of a size that packs, and what trains before it."""
    random = np.random.default_rng(8)
    found, attributes = quantized("w", random, (48, 24, 3, 3), kind)
    weights = [
        *found,
        tensor("shift", np.zeros((24, 1, 1), np.float32)),
        tensor("head", random.standard_normal((48, CLASSES)).astype(np.float32)),
    ]
    nodes = [
        helper.make_node("Add", ["x", "shift"], ["shifted"]),
        helper.make_node("DequantizeLinear", ["w.q", "w.scale", "w.zero"], ["w"], **attributes),
        helper.make_node("Conv", ["shifted", "w"], ["c"], pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "head"], ["y"]),
    ]
    return saved(folder, nodes, weights, (24, 21, 21))


def bent(folder: Path) -> Path:
    """A weight that no kernel reads in place."""
    found, attributes = quantized("w", np.random.default_rng(6), (24, CLASSES), "int8 rows")
    nodes = [
        helper.make_node("DequantizeLinear", ["w.q", "w.scale", "w.zero"], ["w"], **attributes),
        helper.make_node("Abs", ["w"], ["bent"]),
        helper.make_node("MatMul", ["x", "bent"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["y"]),
    ]
    return saved(folder, nodes, [*found, tensor("b", np.zeros(CLASSES, np.float32))], (24,))


def embedding(folder: Path, kind: str) -> Path:
    random = np.random.default_rng(7)
    found, attributes = quantized("table", random, (50, 12), kind)
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["table.q", "table.scale", "table.zero"], ["table"], **attributes
        ),
        helper.make_node("Abs", ["x"], ["size"]),
        helper.make_node("Cast", ["size"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("ReduceMean", ["rows", "axes"], ["mean"], keepdims=0),
        helper.make_node("Gemm", ["mean", "head"], ["y"]),
    ]
    head = tensor("head", random.standard_normal((12, CLASSES)).astype(np.float32))
    return saved(folder, nodes, [*found, head, tensor("axes", np.array([1]))], (5,))


def training(name: str) -> Recipe:
    return Recipe(loss="cross-entropy", train=(name,))


SMALL, LARGE, BLOCKED = (33, 70, CLASSES), (330, 208, 330, CLASSES), (48, 64, CLASSES)
MODELS: Models = {
    "int8": (lambda f: dense(f, "int8 rows", SMALL), LORA),
    "uint8": (lambda f: dense(f, "uint8 zeros", SMALL), LORA),
    "int8 columns": (lambda f: dense(f, "int8 columns zeros", SMALL), LORA),
    "int8 packed products": (lambda f: dense(f, "int8 rows", LARGE), LORA),
    "int4": (lambda f: dense(f, "int4 rows", SMALL), LORA),
    "uint4": (lambda f: dense(f, "uint4 columns zeros", SMALL), LORA),
    "int4 blocks": (lambda f: dense(f, "int4 blocks", BLOCKED), LORA),
    "MatMulNBits": (lambda f: packed(f, "MatMulNBits", (64, 200, CLASSES)), LORA),
    "NF4": (lambda f: packed(f, "MatMulBnb4", (64, 192, CLASSES)), LORA),
    "convolutions": (lambda f: images(f, "int8 rows"), training("shift")),
    "pooled convolutions": (lambda f: pooled(f, "int8 rows"), training("shift")),
    "int4 convolutions": (lambda f: pooled(f, "int4 rows"), training("shift")),
    "packed convolution": (lambda f: large_images(f, "int8 rows"), training("shift")),
    "embedding": (lambda f: embedding(f, "int8 rows"), training("head")),
    "float8": (lambda f: dense(f, "float8 rows", SMALL), LORA),
    "float8 packed products": (lambda f: dense(f, "float8 columns", LARGE), LORA),
    "float8 convolutions": (lambda f: images(f, "float8 rows"), training("shift")),
    "int16": (lambda f: dense(f, "int16 rows", SMALL), LORA),
    "uint16": (lambda f: dense(f, "uint16 columns zeros", SMALL), LORA),
    "int16 blocks": (lambda f: dense(f, "int16 blocks zeros", BLOCKED), LORA),
    "uint16 packed products": (lambda f: dense(f, "uint16 rows zeros", LARGE), LORA),
    "int16 convolutions": (lambda f: images(f, "int16 rows"), training("shift")),
    "uint16 convolutions": (lambda f: pooled(f, "uint16 rows zeros"), training("shift")),
    "packed int16 convolution": (lambda f: large_images(f, "int16 rows"), training("shift")),
    "uint16 embedding": (lambda f: embedding(f, "uint16 rows zeros"), training("head")),
    "not fused": (bent, training("b")),
}


def artifact_set(folder: Path, name: str, samples: int = 19, models: Models = MODELS) -> Path:
    """The artifacts of one of `models` with a batch, in the form of an artifact set."""
    make, recipe = models[name]
    model = make(folder)
    path = folder / f"quantized {name}".replace(" ", "-")
    path.mkdir()
    write_artifacts(make_artifacts(model, recipe), path)
    shape = onnx.load(model).graph.input[0].type.tensor_type.shape.dim
    random = np.random.default_rng(9)
    x = random.standard_normal((samples, *(d.dim_value for d in shape[1:]))).astype(np.float32)
    batch = {"x": x, "labels": random.integers(0, CLASSES, samples)}
    arrays = {f"in/{name}": array[None] for name, array in batch.items()}
    arrays |= {f"eval_in/{name}": array for name, array in batch.items()}
    np.savez(path / "reference.npz", **arrays)
    (path / "meta.json").write_text(json.dumps({"n_batches": 1, "lr": 0.001}))
    return path
