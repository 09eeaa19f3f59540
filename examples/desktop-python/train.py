"""Trains the package in dist/ on scikit-learn's digits, is interrupted halfway, and goes on from its checkpoint.

The digits are 1,797 images of the UCI set "Optical Recognition of Handwritten Digits", which scikit-learn ships.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from sklearn.datasets import load_digits

from minbuild.training.api import CheckpointState, Module, Optimizer

BATCH, EPOCHS, TRAINED = 32, 6, 1400

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
images = (digits.images[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
labels = digits.target[order].astype(np.int64)


def accuracy(scores: np.ndarray) -> float:
    """The share of held-out images whose highest score is that of their own class."""
    return float((scores.argmax(1) == labels[TRAINED:]).mean())


def epoch(model: Module, optimizer: Optimizer, number: int) -> float:
    """One pass over the training images in an order of its own; returns the mean loss."""
    model.train()
    order = np.random.default_rng(number).permutation(TRAINED)
    losses = []
    for first in range(0, TRAINED, BATCH):
        batch = order[first : first + BATCH]
        losses.append(float(model(images[batch], labels[batch])[0]))
        optimizer.step()
        model.lazy_reset_grad()
    return float(np.mean(losses))


def scores_of(model: Module) -> np.ndarray:
    """Scores of the held-out images, [images, 10]."""
    model.eval()
    return np.concatenate(
        [
            model(images[first : first + BATCH], labels[first : first + BATCH])[1]
            for first in range(TRAINED, len(labels), BATCH)
        ]
    )


path = "dist/model/checkpoint"
for part in (range(EPOCHS // 2), range(EPOCHS // 2, EPOCHS)):
    state = CheckpointState.load_checkpoint(path)  # the second time: as after a restart
    model = Module("dist", state)
    optimizer = Optimizer("dist", model)
    optimizer.set_learning_rate(0.005)
    for number in part:
        loss = epoch(model, optimizer, number)
        print(
            f"epoch {number + 1}: loss {loss:.4f}, {accuracy(scores_of(model)):.1%} of held-out digits right"
        )
    path = "trained.checkpoint"
    CheckpointState.save_checkpoint(state, path, include_optimizer_state=True)

model.export_model_for_inferencing("digits.onnx", ["scores"])
(exported,) = ReferenceEvaluator(onnx.load("digits.onnx")).run(None, {"image": images[TRAINED:]})
np.testing.assert_allclose(exported, scores_of(model), rtol=1e-4, atol=1e-4)
assert accuracy(exported) > 0.95, "it did not learn"
print(f"digits.onnx: {accuracy(exported):.1%} right in onnx's own interpreter")
