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
PACKED = frozenset({"gemm_packed", "conv_packed"})


def packed_model() -> onnx.ModelProto:
    """Three convolutions, one with a filter per channel and one with strides, two normalizations, and a dense layer,
    with odd sizes: remainders of every block."""
    net = Net(8)
    x = net.add("Relu", [net.norm(net.conv("input", "conv1", (9, 43)), "norm1", 43)])
    x = net.add("Relu", [net.conv(x, "filters", (43, 43), groups=43)])
    x = net.conv(x, "conv2", (43, 47), stride=2)
    for name in ("norm2.weight", "norm2.bias"):
        net.weights[name] = net.rng.uniform(0.5, 1.5, (SIZE // 2, SIZE // 2)).astype(np.float32)
    x = net.add("Relu", [net.add("LayerNormalization", [x, "norm2.weight", "norm2.bias"], axis=2)])
    x = net.add("AveragePool", [x], kernel_shape=[9, 9], strides=[9, 9])
    x = net.add("Relu", [net.linear(net.add("Flatten", [x], axis=1), "fc1", 47 * 4, 201)])
    net.linear(x, "fc2", 201, CLASSES, "output")
    return net.model({"input": (FLOAT, ("batch", 9, SIZE, SIZE))}, {"output": (FLOAT, ("batch", CLASSES))})


def packed_artifacts(folder: Path) -> Path:
    """The model's training artifacts, in `folder`."""
    onnx.save(packed_model(), folder / "packed.onnx")
    made = make_artifacts(folder / "packed.onnx", Recipe(loss="cross-entropy", optimizer="adamw"))
    write_artifacts(made, folder / "packed")
    return folder / "packed"


def packed_set(folder: Path, samples: int = 17) -> Path:
    """The artifacts with a batch, of as many samples as packing takes, in the form of an artifact set."""
    path, random = packed_artifacts(folder), np.random.default_rng(9)
    images = random.standard_normal((samples, 9, SIZE, SIZE)).astype(np.float32)
    batch = {"input": images, "labels": random.integers(0, CLASSES, samples)}
    arrays = {f"in/{name}": x[None] for name, x in batch.items()}
    arrays |= {f"eval_in/{name}": x for name, x in batch.items()}
    np.savez(path / "reference.npz", **arrays)
    (path / "meta.json").write_text(json.dumps({"n_batches": 1, "lr": 0.001}))
    return path
