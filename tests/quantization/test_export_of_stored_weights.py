"""Weights in four bits and in float8 of exported models: as the forward model has them, for any runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from quantized_nets import CLASSES, MODELS

from minbuild.authoring import make_artifacts, write_artifacts
from minbuild.authoring.recipe import LoraOptions
from minbuild.frontend.artifacts import load_artifacts
from minbuild.planning.inference_export import export_model

pytestmark = pytest.mark.unit
STORED = (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN)


def exported(path: Path, name: str) -> onnx.ModelProto:
    recipe = MODELS[name][1]
    if recipe.lora.weights:  # adapters would stand in the file, too
        recipe = replace(recipe, lora=LoraOptions(), train=("b0", "b1"))
    write_artifacts(make_artifacts(path, recipe), path.parent / "artifacts")
    made = load_artifacts(path.parent / "artifacts")
    _, data = export_model(made, made.checkpoint, ())
    return onnx.load_from_string(data)


@pytest.mark.parametrize(
    "name",
    ["int4", "uint4", "int4 blocks", "int4 convolutions", "float8", "float8 convolutions"],
)
def test_they_are_stored_as_in_the_forward_model(name: str, tmp_path: Path) -> None:
    path = MODELS[name][0](tmp_path)
    forward, model = onnx.load(path), exported(path, name)
    onnx.checker.check_model(model, full_check=True)
    assert all(not node.domain for node in model.graph.node)
    before, after = (
        {t.name: numpy_helper.to_array(t) for t in m.graph.initializer if t.data_type in STORED}
        for m in (forward, model)
    )
    assert after and all(array.dtype == before[n].dtype for n, array in after.items() if n in before)
    assert all(np.array_equal(array, before[n]) for n, array in after.items() if n in before)
    assert {n for n in before if n.endswith(".q")} == {n for n in after if n.endswith(".q")}
    (graph_input,) = forward.graph.input
    shape = [d.dim_value for d in graph_input.type.tensor_type.shape.dim][1:]
    x = np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32)
    (expected,), (found,) = (ReferenceEvaluator(m).run(None, {"x": x}) for m in (forward, model))
    assert found.shape == (2, CLASSES)
    np.testing.assert_array_equal(found, expected)
