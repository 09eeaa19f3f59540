"""Trains a network in PyTorch on scikit-learn's digits, builds a trainer of its head, and lets both learn slanted
digits."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import minbuild.torch

BATCH, STEPS, RATE = 16, 50, 0.2


class Digits(nn.Module):
    """Scores of ten classes for images of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Linear(256, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(image))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images [1797,1,8,8] from 0 to 1 in an order of their own, and classes."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return torch.tensor(data.images[order, None] / 16, dtype=torch.float32), torch.tensor(data.target[order])


def slanted(images: torch.Tensor) -> torch.Tensor:
    """Another hand: each row is moved by up to two pixels, more at the top."""
    rows = [torch.roll(images[:, :, row], round((3.5 - row) / 2), -1) for row in range(8)]
    return torch.stack(rows, 2)


def right(module: nn.Module, images: torch.Tensor, classes: torch.Tensor) -> str:
    with torch.no_grad():
        return f"{(module(images).argmax(1) == classes).float().mean():.1%}".replace("%", " %")


torch.manual_seed(0)
module = Digits()
images, classes = digits()
first, second = slice(0, 1000), slice(1000, None)
optimizer = torch.optim.Adam(module.parameters(), lr=0.005)
for _ in range(60):
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(images[first]), classes[first]).backward()
    optimizer.step()
other = slanted(images)
print(
    f"trained in PyTorch: {right(module, images[second], classes[second])} of the other digits right, "
    f"{right(module, other[second], classes[second])} of them slanted"
)

module.eval()
sgd = torch.optim.SGD(module.head.parameters(), lr=RATE)
trainer = minbuild.torch.reduce(
    module,
    (images[:2],),
    loss=nn.CrossEntropyLoss(),
    train="head.*",
    optimizer=sgd,
    max_dims={"batch": BATCH},
    out="dist",
)

judge = copy.deepcopy(module)
sgd = torch.optim.SGD(judge.head.parameters(), lr=RATE)
differences = []
for step in range(STEPS):
    chosen = slice(step * BATCH, (step + 1) * BATCH)
    ours = trainer.step(other[chosen], classes[chosen])
    sgd.zero_grad()
    loss = nn.functional.cross_entropy(judge(other[chosen]), classes[chosen])
    loss.backward()
    sgd.step()
    differences.append(abs(ours - loss.item()) / loss.item())
    if step in (0, STEPS - 1):
        print(f"step {step + 1}: loss {ours:.5f} by minbuild, {loss.item():.5f} by PyTorch")
print(f"largest difference of a loss: {max(differences):.0e} of it")
assert max(differences) < 1e-4, "the trainer computes something else"

minbuild.torch.copy_parameters(trainer, module)
print(f"back in PyTorch: {right(module, other[second], classes[second])} of the slanted digits right")
(target,) = trainer.report.targets
print(f"library {target.trimmed.file:,} B, RAM {target.ram:,} B at batch {BATCH}")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (images[:2],), dynamic_shapes=({0: batch},))
torch.export.save(program, "digits.pt2")
