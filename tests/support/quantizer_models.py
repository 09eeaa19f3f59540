"""Small models with operators on quantised values, as ONNX Runtime's quantizer writes them: shared by tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from minbuild.authoring import Recipe, Source, artifacts_of
from minbuild.authoring.recipe import LoraOptions
from minbuild.frontend.onnx.reader import opset_in, read_model
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer

RANDOM = np.random.default_rng(6)
MICROSOFT = "com.microsoft"


def numbers(dtype, *shape):
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max, shape).astype(dtype)


def scales(*shape):
    return RANDOM.uniform(0.5, 1, shape).astype(np.float32) / 64


def fake_quantised(x: np.ndarray) -> np.ndarray:
    """As ONNX's DynamicQuantizeLinear and DequantizeLinear leave `x`; a range of zeros has the scale 1, as in
    onnxruntime."""
    low, high = min(0.0, x.min()), max(0.0, x.max())
    scale = (high - low) / 255 or 1.0
    zero = np.rint(-low / scale)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def proto_of(nodes, constants: Mapping[str, np.ndarray], shapes, opset=21):
    """A model from x to y; a node is an operator, its inputs and outputs as text, and attributes."""
    written = [
        helper.make_node(
            op.split(":")[-1], reads.split(), made.split(), domain=op.rpartition(":")[0], **flags
        )
        for op, reads, made, flags in nodes
    ]
    for node in written:
        node.input[:] = ["" if n == "-" else n for n in node.input]
    graph = helper.make_graph(
        written,
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shapes[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", *shapes[1]])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def source_of(proto) -> Source:
    return Source(read_model(proto, Path("model.onnx")), opset_in(proto), Path("model.onnx"))


def adapted(proto, loss="mse") -> TrainingArtifacts:
    recipe = Recipe(loss=loss, lora=LoraOptions(("*",), 2), outputs=("y",), optimizer="")
    return artifacts_of(source_of(proto), recipe, registry())


def outputs(artifacts: TrainingArtifacts, x: np.ndarray, shape) -> np.ndarray:
    _, y = ReferenceTrainer(artifacts).eval_step(x, np.zeros((len(x), *shape), np.float32))
    return y
