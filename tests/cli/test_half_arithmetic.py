"""--half-arithmetic native: refused where a processor has no such arithmetic, and where a model has no use for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from commands import SMALL, Command, command_fixture  # noqa: F401

TEXT = """<ir_version: 8, opset_import: ["" : 17]> m (float[4,8] x) => (float[4,2] y) {
    xh = Cast <to=10> (x) wh = Cast <to=10> (w) h = MatMul (xh, wh) y = Cast <to=1> (h) }"""


def forward(path: Path) -> Path:
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 2), np.float32), "w"))
    onnx.save(model, path)
    return path


def test_a_processor_without_it_is_refused(minbuild: Command, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    model = forward(tmp_path / "half.onnx")
    said = minbuild(
        "reduce",
        model,
        "-o",
        out,
        "--loss",
        "mse",
        "--target",
        "x86_64-linux-gnu",
        "--half-arithmetic",
        "native",
    )
    assert said.code == 2 and "x86_64-linux-gnu has no arithmetic of float16" in said.err
    assert "fullfp16" in said.err and "bfloat16" not in said.err and not out.exists()


def test_a_model_without_products_of_halves_is_refused(minbuild: Command, tmp_path: Path) -> None:
    said = minbuild("reduce", SMALL, "-o", tmp_path / "dist", "--half-arithmetic", "native")
    assert said.code == 2 and "no product of two tensors of float16" in said.err
    assert "Building" not in said.err + said.out
