"""Models of single operators with their gradients by PyTorch in float64. Runs in an environment with torch and onnx.

    python tests/slow/probe_models.py FOLDER

Writes NAME.onnx and NAME.npz (arrays x/SIZE, target/SIZE, gradient/SIZE/PARAMETER for each batch size; losses of a
few steps of gradient descent on the first), and then probes.json.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from probes import LAYERS, PROBES, Probe
from torch import nn
from torch.nn import functional

SIZES = (6, 9)  # batches; models of a fixed batch see the first alone
OPSET = 15
STEPS, RATE = 10, 0.05  # of gradient descent
SEED = 5


class Scaled(nn.Module):
    """The probe's operator behind a product with a parameter, so that every operator has something before it that
    trains."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.weight = nn.Parameter(torch.randn(probe.shape) * 0.6 + 0.2 if probe.scaled else torch.ones(1))
        self.layer = LAYERS[probe.name]() if probe.name in LAYERS else nn.Identity()
        self.probe = probe

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.probe.apply(x * self.weight if self.probe.scaled else x, self.layer)


def made(probe: Probe) -> nn.Module:
    """The probe's model, its parameters rounded to its own precision."""
    return Scaled(probe).to(getattr(torch, probe.kind))


def batches(probe: Probe) -> Iterator[tuple[int, np.ndarray]]:
    random = np.random.default_rng(SEED)
    for size in SIZES[: 1 if probe.fixed else None]:
        if probe.indices:
            yield size, random.integers(0, probe.indices, (size, *probe.shape)).astype(np.int64)
        else:
            yield size, random.standard_normal((size, *probe.shape)).astype(probe.kind)


def gradients(model: nn.Module, x: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
    """Of the mean squared error, in float64, by the names of parameters."""
    exact = model.double()
    exact.zero_grad()
    given = torch.from_numpy(x)
    output = exact(given.double() if given.is_floating_point() else given)
    functional.mse_loss(output, torch.from_numpy(target).double()).backward()
    return {n: p.grad.numpy().copy() for n, p in exact.named_parameters() if p.grad is not None}


def record(probe: Probe, folder: Path) -> None:
    random, arrays = np.random.default_rng(SEED + 1), {}
    export(probe, made(probe), folder / f"{probe.file}.onnx")
    for size, x in batches(probe):
        with torch.no_grad():
            shape = made(probe)(torch.from_numpy(x)).shape
        target = random.standard_normal(tuple(shape)).astype(probe.kind)
        arrays |= {f"x/{size}": x, f"target/{size}": target}
        found = gradients(made(probe), x, target)
        arrays |= {f"gradient/{size}/{n}": g for n, g in found.items()}
    arrays["losses"] = trained(made(probe), arrays[f"x/{SIZES[0]}"], arrays[f"target/{SIZES[0]}"])
    np.savez(folder / f"{probe.file}.npz", **arrays)


def trained(model: nn.Module, x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The losses of STEPS steps of gradient descent on one batch, in float64."""
    exact, losses = model.double(), []
    optimizer = torch.optim.SGD(exact.parameters(), lr=RATE)
    given = torch.from_numpy(x)
    for _ in range(STEPS):
        optimizer.zero_grad()
        output = exact(given.double() if given.is_floating_point() else given)
        loss = functional.mse_loss(output, torch.from_numpy(target).double())
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return np.array(losses)


def export(probe: Probe, model: nn.Module, path: Path) -> None:
    """The model as ONNX, nothing folded, with a free batch."""
    size, x = next(batches(probe))
    torch.onnx.export(
        model,
        (torch.from_numpy(x),),
        path,
        opset_version=probe.opset or OPSET,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={} if probe.fixed else {"x": {0: "batch"}},
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        dynamo=False,
    )


def exported_as(name: str) -> Callable[..., object]:
    """An operator of ONNX that PyTorch's exporter leaves out."""
    return lambda graph, x, *rest: graph.op(name, x)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.onnx.register_custom_op_symbolic("aten::sinh", exported_as("Sinh"), 9)
    torch.onnx.register_custom_op_symbolic("aten::detach", exported_as("Identity"), 9)
    told = []
    for probe in PROBES:
        record(probe, folder)
        told.append({n: getattr(probe, n) for n in ("name", "file", "ort", "stops", "kind")})
    (folder / "probes.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
