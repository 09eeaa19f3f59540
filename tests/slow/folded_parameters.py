"""Modules whose parameters PyTorch's exporter folds into constants: gradients of the trainer against PyTorch's own.

    python tests/slow/folded_parameters.py export FOLDER     in an environment with torch, onnx and onnxscript
    python tests/slow/folded_parameters.py compare FOLDER    in that of the project

`export` writes each module's model, batch and gradients; `compare` makes artifacts of the models, and prints the
largest difference of any parameter's gradient, relative to its largest element.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

WITHIN = 1e-5


def modules():
    """By name: a module and its input. All parameters are such as the exporter folds, merges or leaves out."""
    import torch
    from torch import nn
    from torch.nn.functional import softplus

    def weighted(layer):
        return nn.utils.parametrizations.weight_norm(layer)

    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)
            self.t, self.s = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.randn(3))
            self.u, self.w = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))

        def forward(self, x):
            y = self.fc(x) * torch.exp(self.t) + torch.exp(-self.s)
            return y * torch.sigmoid(self.u)[None, :] + softplus(self.w)

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.up = weighted(nn.Conv1d(2, 4, 3)), weighted(nn.ConvTranspose1d(4, 2, 3))
            self.fc, self.old = weighted(nn.Linear(9, 5)), nn.utils.weight_norm(nn.Linear(5, 3))

        def forward(self, x):
            return self.old(torch.relu(self.fc(self.up(torch.tanh(self.conv(x))))))

    class Equal(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2, self.a, self.b = (
                nn.LayerNorm(4),
                nn.LayerNorm(4),
                nn.Linear(4, 4),
                nn.Linear(4, 4),
            )
            self.scale, self.conv, self.bn = (
                nn.Parameter(torch.ones(4)),
                nn.Conv1d(4, 4, 1),
                nn.BatchNorm1d(4),
            )
            for layer in (self.a, self.b, self.conv):
                nn.init.zeros_(layer.bias)

        def forward(self, x):
            y = self.b(self.n2(torch.relu(self.a(self.n1(x))))) * self.scale
            return self.conv(self.bn(torch.relu(y)))

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4, bias=False)

        def forward(self, x):
            return self.down(torch.tanh(self.up(x))) @ self.down.weight

    return {
        "scales": (Scales(), torch.randn(2, 4)),
        "weight norm": (Normed(), torch.randn(3, 2, 9)),
        "equal": (Equal().eval(), torch.randn(2, 4, 4)),
        "tied": (Tied(), torch.randn(2, 5, 4)),
    }


def export(folder: Path) -> None:
    import torch

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    for name, (module, x) in modules().items():
        torch.onnx.export(module, (x,), dynamo=True, verbose=False).save(folder / f"{name}.onnx")
        y = module(x)
        target = torch.randn(y.shape)
        torch.nn.functional.mse_loss(y, target).backward()
        gradients = {n: p.grad.numpy() for n, p in module.named_parameters()}
        np.savez(folder / f"{name}.npz", x=x.numpy(), target=target.numpy(), **gradients)


def compare(folder: Path) -> int:
    from minbuild.authoring import Recipe, artifacts_of, read_source
    from minbuild.ops import registry
    from minbuild.reference.interpreter import ReferenceTrainer

    failed = 0
    for path in sorted(folder.glob("*.onnx")):
        artifacts = artifacts_of(read_source(path), Recipe(loss="mse", optimizer=""), registry())
        trainer, wanted = ReferenceTrainer(artifacts), dict(np.load(path.with_suffix(".npz")))
        trainer.train_step(wanted.pop("x"), wanted.pop("target"))
        lacking = sorted(set(wanted) - set(trainer.gradients))
        worst, where = max(
            (np.abs(trainer.gradients[n] - g).max() / max(np.abs(g).max(), 1e-6), n)
            for n, g in wanted.items()
            if n not in lacking
        )
        failed += bool(lacking) or not worst <= WITHIN
        print(
            f"{path.stem}: {len(wanted) - len(lacking)} of {len(wanted)} parameters, {worst:.1e} ({where})",
            *lacking,
        )
    return failed


if __name__ == "__main__":
    command, where = sys.argv[1:]
    sys.exit(export(Path(where)) if command == "export" else compare(Path(where)))
