"""Trains the adapters of the package in dist/ on one author's text, and judges by a text that was not learned."""

from __future__ import annotations

import numpy as np
from texts import LENGTH, author, whole, windows

from minbuild.training.api import CheckpointState, Module, Optimizer

BATCH, STEPS = 16, 300


def loss_of(module: Module, text: np.ndarray) -> float:
    """Mean loss of a symbol over the whole text, in windows as large as a batch in training."""
    module.eval()
    symbols, following = whole(text)
    losses, sizes = [], []
    for first in range(0, len(symbols), BATCH):
        part = symbols[first : first + BATCH]
        losses.append(float(module(part, following[first * LENGTH :][: part.size])))
        sizes.append(part.size)
    return float(np.average(losses, weights=sizes))


learned, held = author()
state = CheckpointState.load_checkpoint("dist/model/checkpoint")
module = Module("dist", state)
optimizer = Optimizer("dist", module)
before = loss_of(module, held)
module.train()
random = np.random.default_rng(1)
for step in range(STEPS):
    optimizer.set_learning_rate(0.01 * (1 - step / STEPS))
    module(*windows(learned, random.integers(0, len(learned) - LENGTH - 1, BATCH)))
    optimizer.step()
    module.lazy_reset_grad()
after = loss_of(module, held)
CheckpointState.save_checkpoint(state, "author.checkpoint")

adapters = sum(parameter.data.size for _, parameter in state.parameters)
print(f"adapters: {adapters:,} numbers in {len(list(state.parameters))} tensors")
print(f"loss of a symbol in the author's other text: {before:.3f} before, {after:.3f} after")
assert after < 0.95 * before, "it did not learn"
