"""Float models and what onnxruntime's quantizers make of them, for measure_packed_weights.py.

    PYTHON tests/slow/make_quantized_models.py FOLDER

PYTHON is an interpreter with onnx, onnxruntime and torch, which its HQQ quantizer computes with.
"""

import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import (
    HQQWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
)

folder, random = sys.argv[1], np.random.default_rng(0)


def weight(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(array.astype(np.float32), name)


def save(nodes: list, weights: list, shape: tuple, name: str, element: int = onnx.TensorProto.FLOAT) -> None:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", element, ["batch", *shape])],
        [helper.make_tensor_value_info("logits", 1, ["batch", 10])],
        weights,
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        f"{folder}/{name}.onnx",
    )


sizes = (784, 512, 256, 10)
for kind in ("mlp", "matmul"):
    nodes, weights, x = [], [], "x"
    for i, (depth, columns) in enumerate(zip(sizes, sizes[1:], strict=False)):
        w, y = f"fc{i}.weight", "logits" if i == 2 else f"h{i}"
        array = random.standard_normal((columns, depth)) / depth**0.5
        weights += [
            weight(w, array if kind == "mlp" else array.T),
            weight(f"fc{i}.bias", random.standard_normal(columns) / 8),
        ]
        if kind == "mlp":
            nodes.append(helper.make_node("Gemm", [x, w, f"fc{i}.bias"], [y], name=f"fc{i}", transB=1))
        else:
            nodes += [
                helper.make_node("MatMul", [x, w], [y + "/product"], name=f"fc{i}"),
                helper.make_node("Add", [y + "/product", f"fc{i}.bias"], [y]),
            ]
        if i < 2:
            nodes.append(helper.make_node("Relu", [y], [f"a{i}"]))
            x = f"a{i}"
    save(nodes, weights, (784,), kind)
nodes, weights, x = [], [], "x"
for i, (channels, filters) in enumerate(((1, 16), (16, 32), (32, 64))):
    weights += [
        weight(f"conv{i}.weight", random.standard_normal((filters, channels, 3, 3)) / (channels * 9) ** 0.5),
        weight(f"conv{i}.bias", random.standard_normal(filters) / 8),
    ]
    nodes += [
        helper.make_node(
            "Conv",
            [x, f"conv{i}.weight", f"conv{i}.bias"],
            [f"c{i}"],
            name=f"conv{i}",
            pads=[1] * 4,
            strides=[2, 2],
        ),
        helper.make_node("Relu", [f"c{i}"], [f"r{i}"]),
    ]
    x = f"r{i}"
nodes += [
    helper.make_node("GlobalAveragePool", [x], ["p"]),
    helper.make_node("Flatten", ["p"], ["f"]),
    helper.make_node("Gemm", ["f", "head.weight", "head.bias"], ["logits"], name="head", transB=1),
]
weights += [
    weight("head.weight", random.standard_normal((10, 64)) / 8),
    weight("head.bias", random.standard_normal(10) / 8),
]
save(nodes, weights, (1, 28, 28), "cnn")
nodes = [
    helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
    helper.make_node(
        "LSTM",
        ["steps", "lstm.weight", "lstm.hidden", "lstm.bias"],
        ["", "last"],
        name="lstm",
        hidden_size=96,
    ),
    helper.make_node("Squeeze", ["last", "axes"], ["state"]),
    helper.make_node("Gemm", ["state", "head.weight", "head.bias"], ["logits"], name="head", transB=1),
]
weights = [
    weight("lstm.weight", random.standard_normal((1, 384, 40)) / 6),
    weight("lstm.hidden", random.standard_normal((1, 384, 96)) / 10),
    weight("lstm.bias", random.standard_normal((1, 768)) / 10),
    numpy_helper.from_array(np.array([0]), "axes"),
    weight("head.weight", random.standard_normal((10, 96)) / 8),
    weight("head.bias", random.standard_normal(10) / 8),
]
save(nodes, weights, (20, 40), "lstm")
nodes = [
    helper.make_node("Gather", ["table.weight", "x"], ["rows"], name="table"),
    helper.make_node("ReduceSum", ["rows", "axes"], ["sum"], keepdims=0),
    helper.make_node("Gemm", ["sum", "head.weight", "head.bias"], ["logits"], name="head", transB=1),
]
weights = [
    weight("table.weight", random.standard_normal((4096, 64)) / 4),
    numpy_helper.from_array(np.array([1]), "axes"),
    weight("head.weight", random.standard_normal((10, 64)) / 8),
    weight("head.bias", random.standard_normal(10) / 8),
]
save(nodes, weights, (16,), "table", onnx.TensorProto.INT64)


class Batches(CalibrationDataReader):
    def __init__(self, shape: tuple) -> None:
        self.left = iter([{"x": random.standard_normal((8, *shape)).astype(np.float32)} for _ in range(4)])

    def get_next(self) -> dict | None:
        return next(self.left, None)


def static(name: str, to: str, shape: tuple, form: QuantFormat = QuantFormat.QDQ, **options: object) -> None:
    quantize_static(
        f"{folder}/{name}.onnx", f"{folder}/{to}.onnx", Batches(shape), quant_format=form, **options
    )


static("mlp", "mlp_static", (784,), per_channel=True, weight_type=QuantType.QInt8)
static("mlp", "mlp_uint8", (784,), weight_type=QuantType.QUInt8, activation_type=QuantType.QUInt8)
static(
    "cnn", "cnn_static", (1, 28, 28), per_channel=True, weight_type=QuantType.QInt8, nodes_to_exclude=["head"]
)
static("mlp", "mlp_qoperator", (784,), QuantFormat.QOperator, per_channel=True, weight_type=QuantType.QInt8)
wide = {"activation_type": QuantType.QUInt16, "extra_options": {"UseQDQContribOps": True}}
static("mlp", "mlp_int16", (784,), per_channel=True, weight_type=QuantType.QInt16, **wide)
static("matmul", "matmul_uint16", (784,), weight_type=QuantType.QUInt16, **wide)
static(
    "cnn",
    "cnn_int16",
    (1, 28, 28),
    per_channel=True,
    weight_type=QuantType.QInt16,
    nodes_to_exclude=["head"],
    **wide,
)
static(
    "cnn",
    "cnn_qoperator",
    (1, 28, 28),
    QuantFormat.QOperator,
    per_channel=True,
    weight_type=QuantType.QInt8,
    nodes_to_exclude=["head"],
)
quantize_dynamic(f"{folder}/matmul.onnx", f"{folder}/matmul_dynamic.onnx", weight_type=QuantType.QInt8)
quantize_dynamic(
    f"{folder}/cnn.onnx",
    f"{folder}/cnn_dynamic.onnx",
    weight_type=QuantType.QUInt8,
    nodes_to_exclude=["head"],
)
quantize_dynamic(
    f"{folder}/lstm.onnx",
    f"{folder}/lstm_dynamic.onnx",
    weight_type=QuantType.QInt8,
    nodes_to_exclude=["head"],
)
for name, bits, form in (
    ("nbits4", 4, QuantFormat.QOperator),
    ("nbits8", 8, QuantFormat.QOperator),
    ("qdq4", 4, QuantFormat.QDQ),
):
    maker = MatMulNBitsQuantizer(
        onnx.load(f"{folder}/matmul.onnx"), bits=bits, block_size=32, is_symmetric=False, quant_format=form
    )
    maker.process()
    maker.model.save_model_to_file(f"{folder}/matmul_{name}.onnx")
maker = MatMulNBitsQuantizer(
    onnx.load(f"{folder}/matmul.onnx"), algo_config=HQQWeightOnlyQuantConfig(block_size=32)
)
maker.process()
maker.model.save_model_to_file(f"{folder}/matmul_hqq.onnx")
maker = MatMulNBitsQuantizer(
    onnx.load(f"{folder}/table.onnx"),
    block_size=32,
    is_symmetric=False,
    op_types_to_quantize=("Gather",),
    quant_axes=(("Gather", 1),),
)
maker.process()
maker.model.save_model_to_file(f"{folder}/table_gather4.onnx")
# NF4 as bitsandbytes packs it: indices of the nearest values, two a byte, the first in the high half.
TABLE = np.array(
    [
        -1.0,
        -0.6961928,
        -0.52507305,
        -0.39491749,
        -0.28444138,
        -0.18477343,
        -0.09105004,
        0.0,
        0.0795803,
        0.1609302,
        0.2461123,
        0.33791524,
        0.44070983,
        0.562617,
        0.72295684,
        1.0,
    ],
    np.float32,
)
model = onnx.load(f"{folder}/matmul.onnx")
arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
del model.graph.initializer[:]
for node in model.graph.node:
    if node.op_type == "MatMul":
        name = node.input[1]
        blocks = arrays.pop(name).T.reshape(-1, 16)
        columns, depth = sizes[int(name[2]) + 1], sizes[int(name[2])]
        scale = np.abs(blocks).max(1)
        codes = np.abs(blocks[:, :, None] / scale[:, None, None] - TABLE).argmin(2).astype(np.uint8).ravel()
        arrays[name], arrays[name + ".scale"] = codes[::2] << 4 | codes[1::2], scale.astype(np.float32)
        node.op_type, node.domain = "MatMulBnb4", "com.microsoft"
        node.input.append(name + ".scale")
        node.attribute.extend(
            helper.make_attribute(n, v)
            for n, v in (("K", depth), ("N", columns), ("block_size", 16), ("quant_type", 1))
        )
model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
onnx.save(model, f"{folder}/matmul_nf4.onnx")
