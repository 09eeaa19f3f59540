"""Recurrent layers that ONNX Runtime 1.19.2 differentiates and then refuses to run."""

from __future__ import annotations

import numpy as np
import pytest
import trainers

from minbuild.ir import Checkpoint, ElementType, Graph, Node, TensorType, TrainingArtifacts
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.ops.recurrent.lstm import run

REGISTRY = registry()
STEPS, FEATURES, UNITS = 4, 3, 5


def artifacts(direction: str) -> TrainingArtifacts:
    """The nodes that generate_artifacts writes for an LSTM whose outputs are all read."""
    directions = 2 if direction == "bidirectional" else 1
    attributes = {"direction": direction, "hidden_size": UNITS, "input_forget": 0}
    sizes = {
        "x": (STEPS, symbol("batch"), FEATURES),
        "w": (directions, 4 * UNITS, FEATURES),
        "r": (directions, 4 * UNITS, UNITS),
        "b": (directions, 8 * UNITS),
        "dy": (STEPS, directions, symbol("batch"), UNITS),
    }
    saved = ("y", "", "", "cells", "iofc")
    inputs = ("x", "w", "r", "", "", "", "y", "cells", "iofc", "dy", "", "")
    nodes = (
        Node("LSTMTraining", "com.microsoft", 1, "lstm", ("x", "w", "r", "b"), saved, attributes),
        Node("LSTMGrad", "com.microsoft", 1, "grad", inputs, ("dx", "dw", "dr", "db"), attributes),
    )
    types = {name: TensorType(ElementType.FLOAT, shape) for name, shape in sizes.items()}
    graph = Graph("t.onnx", nodes, types, {}, ("y", "dx", "dw", "dr", "db"), {})
    return TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {})


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_lstm_trains_in_every_direction(direction, tmp_path):
    """ORT writes LSTMTraining and LSTMGrad for any direction, and its kernels accept only forward."""
    built = artifacts(direction)
    plan = trainers.plan_of(built, REGISTRY)
    library = trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path)
    session = trainers.session_of(library, plan, {})
    random, directions = np.random.default_rng(3), 2 if direction == "bidirectional" else 1
    weights = [random.standard_normal((directions, 4 * UNITS, n)) for n in (FEATURES, UNITS)]
    weights.append(random.standard_normal((directions, 8 * UNITS)))
    for batch in (3, 1):
        given = [random.standard_normal((STEPS, batch, FEATURES)), *weights]
        dy = random.standard_normal((STEPS, directions, batch, UNITS))
        y, *gradients = session.run(0, [a.astype(np.float32) for a in (*given, dy)])
        attributes = {"direction": direction}
        np.testing.assert_allclose(y, run(attributes, *given)[0], atol=1e-5)
        for i, gradient in enumerate(gradients):
            toward = random.standard_normal(given[i].shape)
            ahead, behind = (
                (run(attributes, *given[:i], given[i] + step * toward, *given[i + 1 :])[0] * dy).sum()
                for step in (1e-5, -1e-5)
            )
            assert (gradient * toward).sum() == pytest.approx((ahead - behind) / 2e-5, rel=1e-4, abs=1e-3)
