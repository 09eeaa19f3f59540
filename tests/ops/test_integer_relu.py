"""Relu of whole numbers: every element, and none behind the last."""

from __future__ import annotations

import numpy as np
import pytest
import trainers

from minbuild.ir import Checkpoint, Graph, Node, TensorType, TrainingArtifacts
from minbuild.ops import registry
from minbuild.training.library import TRAIN, Library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    contents = trainers.everything_of({"relu", "copy"}, registry())
    return trainers.library_of(contents, registry(), tmp_path_factory.mktemp("relu"))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_whole_numbers_are_clipped_at_zero(library: Library, dtype: type[np.integer]) -> None:
    x = (np.arange(64) - 32).astype(dtype)
    node = Node("Relu", "", 14, "relu", ("x",), ("y",), {})
    graph = Graph(
        "training_model.onnx", (node,), {"x": TensorType(trainers.element_of(x), x.shape)}, {}, ("y",), {}
    )
    artifacts = TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {})
    session = trainers.session_of(library, trainers.plan_of(artifacts, registry()), {})
    (y,) = session.run(TRAIN, [x])
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert (session.guard == 0xFF).all()
