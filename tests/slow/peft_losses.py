"""The side of peft in compare_peft.py: models with adapters, their ONNX files, and 200 losses of PyTorch.

python tests/slow/peft_losses.py FOLDER

For each model NAME there are NAME_base.onnx without adapters, NAME_peft.onnx with peft's, and NAME.npz with batches,
losses, and first values of the adapters by the name of the adapted weight.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

STEPS, BATCHES, RANK, ALPHA, RATE, DECAY, EPSILON = 200, 8, 4, 8, 2e-3, 0.01, 1e-8


class Attention(nn.Module):
    """One block of a transformer over words, with a mean over them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.last = nn.Embedding(50, 32), nn.LayerNorm(32), nn.LayerNorm(32)
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.up, self.down, self.head = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        y = self.norm(x)
        shape = (*y.shape[:2], 4, 8)
        q, k, v = (layer(y).reshape(shape).transpose(1, 2) for layer in (self.query, self.key, self.value))
        weights = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(y.shape))
        x = x + self.down(torch.tanh(self.up(self.last(x))))
        return self.head(x.mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, stride=2), nn.Tanh(),
        nn.Flatten(), nn.Linear(144, 10),
    )  # fmt: skip


MODELS = {
    "mlp": (mlp, ["0", "2", "4"], (16, 64), 10),
    "cnn": (cnn, ["0", "3", "6"], (16, 1, 16, 16), 10),
    "attention": (Attention, ["query", "value", "out", "up", "down", "words"], (16, 12), 5),
}


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name, (make, targets, shape, classes) in MODELS.items():
        torch.manual_seed(0)
        base = make()
        whole = name == "attention"
        inputs = [torch.randint(0, 50, shape) if whole else torch.randn(shape) for _ in range(BATCHES)]
        labels = [torch.randint(0, classes, shape[:1]) for _ in range(BATCHES)]
        export(base, inputs[0], folder / f"{name}_base.onnx")
        model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets))
        export(model, inputs[0], folder / f"{name}_peft.onnx")
        first = {n: p.detach().numpy().copy() for n, p in model.named_parameters() if p.requires_grad}
        optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], RATE, eps=EPSILON, weight_decay=DECAY
        )
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[step % BATCHES]), labels[step % BATCHES])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        np.savez(
            folder / f"{name}.npz",
            inputs=torch.stack(inputs).numpy(),
            labels=torch.stack(labels).numpy(),
            losses=np.array(losses),
            **{f"first/{n}": a for n, a in first.items()},
        )


def export(model: nn.Module, x: torch.Tensor, path: Path) -> None:
    torch.onnx.export(
        model.eval(), (x,), str(path), input_names=["x"], output_names=["y"], dynamo=True, optimize=False,
        opset_version=18, external_data=False, verbose=False,
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
