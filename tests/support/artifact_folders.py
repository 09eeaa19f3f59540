"""Folders of artifacts, and ways to damage them: shared by tests."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from places import ROOT

from minbuild.errors import BadInput
from minbuild.frontend.artifacts import load_artifacts
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint
from minbuild.frontend.onnx.reader import read_graph

GOLDEN = ROOT / "tests" / "golden"


CASES = ROOT.parent / "shared" / "cases"


SETS = [ROOT / "artifacts", *sorted(p.parent for p in GOLDEN.glob("*/checkpoint"))]


FILES = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")


def failure(folder: Path) -> str:
    with pytest.raises(BadInput) as caught:
        load_artifacts(folder)
    return str(caught.value)


def graph(*nodes, inputs=(), outputs=("y",), initializers=(), opset=17, **fields):
    """Read a model of these parts."""
    proto = helper.make_graph(
        list(nodes), "g", list(inputs) or [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs], list(initializers),
    )  # fmt: skip
    imports = [
        helper.make_opsetid("", opset),
        helper.make_opsetid("com.microsoft", 1),
        helper.make_opsetid("f", 1),
    ]
    model = helper.make_model(proto, opset_imports=imports, ir_version=8, **fields)
    return read_graph(model.SerializeToString(), Path("m/model.onnx"))


def edit(path: Path, change) -> None:
    model = onnx.load(path)
    change(model)
    path.write_bytes(model.SerializeToString())


def rewrite(folder: Path, change) -> None:
    checkpoint = read_checkpoint(folder / "checkpoint")
    (folder / "checkpoint").write_bytes(write_checkpoint(change(checkpoint)))
