"""Forward models as text or from the golden sets, and what is made of them: shared by tests."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx.parser
from places import GOLDEN

sys.path.append(str(GOLDEN))

from forward import CASES, Case  # noqa: E402

from minbuild.authoring import Recipe, Source, artifacts_of  # noqa: E402
from minbuild.frontend.onnx.reader import opset_in, read_model  # noqa: E402
from minbuild.ir import TrainingArtifacts  # noqa: E402
from minbuild.ops import registry  # noqa: E402
from minbuild.reference.interpreter import ReferenceTrainer  # noqa: E402

FORWARD: Mapping[str, Case] = {case.name: case for case in CASES}
STEP = 1e-5


def source(
    text: str, weights: Mapping[str, np.ndarray] | None = None, opset: int = 17, functions: str = ""
) -> Source:
    """A model whose graph is `text`, with `weights` as initializers."""
    imports = f'"" : {opset}, "own" : 1, "ai.onnx.preview" : 1, "com.microsoft" : 1'
    model = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> {text} {functions}")
    for name, array in (weights or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return Source(read_model(model, Path("model.onnx")), opset_in(model), Path("model.onnx"))


def trainer_of(model: Source, recipe: Recipe) -> ReferenceTrainer:
    """The artifacts of a model, in float64."""
    return ReferenceTrainer(artifacts_of(model, recipe, registry()))


def stepped(trainer: ReferenceTrainer, *batch: np.ndarray) -> float:
    """The loss of a step whose gradients replace those before."""
    trainer.lazy_reset_grad()
    return float(np.ravel(trainer.train_step(*batch)[0])[0])


def differences(trainer: ReferenceTrainer, *batch: np.ndarray) -> dict[str, float]:
    """By trained parameter, how far its gradient is from central differences of the loss along a random direction, as
    part of what they say."""
    random = np.random.default_rng(3)
    stepped(trainer, *batch)
    gradients, found = {n: g.copy() for n, g in trainer.gradients.items()}, {}
    for name in trainer.trained:
        start, direction = trainer.parameters[name], random.standard_normal(trainer.parameters[name].shape)
        losses = []
        for sign in (1, -1):
            trainer.parameters[name] = start + sign * STEP * direction
            losses.append(stepped(trainer, *batch))
        trainer.parameters[name] = start
        wanted = (losses[0] - losses[1]) / (2 * STEP)
        found[name] = abs(float((gradients[name] * direction).sum()) - wanted) / max(abs(wanted), 1e-3)
    return found


def operators(artifacts: TrainingArtifacts) -> list[str]:
    """Of the training model, in order."""
    return [node.op_type for node in artifacts.training.nodes]


def uniform(*shapes: Sequence[int]) -> list[np.ndarray]:
    """Arrays of these shapes, the same ones every time."""
    random = np.random.default_rng(8)
    return [random.uniform(-1, 1, tuple(shape)).astype(np.float32) for shape in shapes]
