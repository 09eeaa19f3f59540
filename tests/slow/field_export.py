"""Exports the models of field_zoo.py with both of PyTorch's exporters, and records how PyTorch trains them. Runs in an
environment with torch, torchvision, timm, transformers, onnx and onnxscript.

    python tests/slow/field_export.py FOLDER [NAME...]

Writes FOLDER/NAME/meta.json, and legacy.onnx, dynamo.onnx, legacy.npz and dynamo.npz. A record has the batches
(in/INPUT, target), the losses of AdamW in float64 (loss64), and by parameter its first value and first gradient in
float64 (value/NAME, gradient64/NAME). loss_noise and noise/NAME are the largest distances from these of PyTorch in
float32, started from the same weights and from some that differ in their last bit: a network that answers such a step
by a large one (a tie in a pool, batch normalisation of few values) shows it here.
"""

from __future__ import annotations

import copy
import json
import math
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from field_zoo import ZOO, Entry
from torch import Tensor, nn
from torch.nn import functional

STEPS, RATE, SEED = 5, 0.002, 3
SHAKEN = 3  # runs from weights that differ in their last bit
EPSILON, DECAY = 1e-6, 0.01  # an epsilon this large keeps rounding noise from becoming whole steps
DYNAMO_OPSET = 20
EXPORTERS = ("legacy", "dynamo")
EPSILONS = ("eps", "variance_epsilon")


def main(folder: Path, names: list[str]) -> None:
    warnings.filterwarnings("ignore")
    for name in names or ZOO:
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        meta = made(ZOO[name], place)
        (place / "meta.json").write_text(json.dumps(meta, indent=1))
        print(f"{name}: {meta['failed'] or 'exported'}", file=sys.stderr, flush=True)


def made(entry: Entry, place: Path, exporters: Sequence[str] = EXPORTERS) -> dict[str, Any]:
    """Files of one model by these exporters; what could not be made is told by exporter."""
    torch.manual_seed(SEED)
    torch.set_default_dtype(torch.float32)  # as it was before a model that failed
    meta: dict[str, Any] = {"loss": entry.loss, "random": entry.random, "rate": RATE, "failed": {}}
    meta["adamw"] = {"epsilon": EPSILON, "weight_decay": DECAY}
    torch.set_num_threads(1)
    meta |= {"inputs": list(entry.inputs), "opset": {"legacy": entry.opset, "dynamo": DYNAMO_OPSET}}
    try:
        model = _distinct(entry.make().train())
        if hasattr(model, "names"):
            model.names = tuple(entry.inputs)
        batches = _batches(entry)
        for exporter in exporters:
            recorded = _record(_as_exported(model, exporter), entry, batches)
            np.savez(place / f"{exporter}.npz", **recorded)
    except Exception as error:  # of libraries of any version
        return meta | {"failed": dict.fromkeys(exporters, _text(error))}
    for exporter in exporters:
        path = place / f"{exporter}.onnx"
        path.unlink(missing_ok=True)
        try:
            _export(exporter, copy.deepcopy(model), batches[0], entry, path)
        except Exception as error:  # noqa: BLE001
            meta["failed"][exporter] = _text(error)
    return meta


def _distinct(model: nn.Module) -> nn.Module:
    """No two parameters equal, as after some training: exporters make one initializer of those that are."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return model


def _as_exported(model: nn.Module, exporter: str) -> nn.Module:
    """The newer exporter writes batch normalisation as inference has it, whatever the mode of the model; and an epsilon
    is a float32 in ONNX."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for name in EPSILONS:
            if isinstance(value := getattr(module, name, None), float):
                setattr(module, name, float(np.float32(value)))
    for module in model.modules() if exporter == "dynamo" else ():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    return model


def _text(error: Exception) -> str:
    if "-v" in sys.argv:
        traceback.print_exc()
    lines = str(error).strip().splitlines() or [""]
    return re.sub(r"\x1b\[[0-9;]*m", "", f"{type(error).__name__}: {lines[0]}")[:200]  # without colours


def _batches(entry: Entry) -> list[dict[str, np.ndarray]]:
    """Inputs and, where the loss is not the model's own, the target of every step."""
    random = np.random.default_rng(entry.seed)
    wanted = dict(entry.inputs)
    if entry.loss == "mse":
        wanted["target"] = entry.target
    elif entry.loss == "cross-entropy":
        wanted["target"] = ((), range(10))
    return [{n: _sample(random, spec, entry.batch) for n, spec in wanted.items()} for _ in range(STEPS)]


def _sample(random: np.random.Generator, spec: Any, batch: int) -> np.ndarray:
    if spec and isinstance(spec[0], tuple):
        shape, values = spec
        return random.integers(values.start, values.stop, (batch, *shape))
    return random.standard_normal((batch, *spec)).astype(np.float32)


def _record(model: nn.Module, entry: Entry, batches: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    parameters = dict(model.named_parameters())
    found = {f"value/{n}": p.detach().numpy().copy() for n, p in parameters.items()}
    found |= {f"in/{n}": np.stack([b[n] for b in batches]) for n in entry.inputs}
    if "target" in batches[0]:
        found["target"] = np.stack([b["target"] for b in batches])
    losses, gradients = _trained(copy.deepcopy(model).double(), entry, batches, torch.float64)
    found |= {"loss64": losses} | {f"gradient64/{n}": g for n, g in gradients.items()}
    found |= {"loss_noise": np.zeros(())} | {f"noise/{n}": np.zeros(()) for n in gradients}
    for run in range(1 + SHAKEN):
        near = _trained(_shaken(model) if run else copy.deepcopy(model), entry, batches, torch.float32)
        found["loss_noise"] = np.maximum(found["loss_noise"], np.abs(near[0] - losses).max())
        for name, gradient in near[1].items():
            distance = np.abs(gradient - gradients[name]).max()
            found[f"noise/{name}"] = np.maximum(found[f"noise/{name}"], distance)
    return found


@torch.no_grad()
def _shaken(model: nn.Module) -> nn.Module:
    """The model, each weight moved to a neighbour in float32 or left."""
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        away = torch.randint(-1, 2, parameter.shape) * math.inf
        moved = torch.nextafter(parameter, away.nan_to_num_(0, math.inf, -math.inf))
        parameter.copy_(torch.where(away == 0, parameter, moved))
    return model


def _trained(
    model: nn.Module, entry: Entry, batches: list[dict[str, np.ndarray]], dtype: torch.dtype
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    moments: dict[str, tuple[Tensor, Tensor]] = {}
    losses: list[float] = []
    gradients: dict[str, np.ndarray] = {}
    torch.manual_seed(SEED)
    torch.set_default_dtype(dtype)
    for batch in batches:
        given = {n: _tensor(a, dtype) for n, a in batch.items()}
        target = given.pop("target", None)
        loss = _loss(entry, model(*given.values()), target)
        model.zero_grad()
        loss.backward()
        gradients = gradients or {
            n: p.grad.numpy().copy() for n, p in model.named_parameters() if p.grad is not None
        }
        losses.append(loss.item())
        _update(model, moments, len(losses))
    torch.set_default_dtype(torch.float32)
    return np.array(losses), gradients


@torch.no_grad()
def _update(model: nn.Module, moments: dict[str, tuple[Tensor, Tensor]], step: int) -> None:
    """AdamW as artifacts have it: epsilon is added before the bias is corrected, and decay comes last."""
    alpha, beta = 0.9, 0.999
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        m, v = moments.setdefault(name, (torch.zeros_like(p), torch.zeros_like(p)))
        m.lerp_(p.grad, 1 - alpha)
        v.lerp_(p.grad.square(), 1 - beta)
        rate = RATE * (1 - beta**step) ** 0.5 / (1 - alpha**step)
        p -= rate * m / (v.sqrt() + EPSILON)
        p -= RATE * DECAY * p


def _tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _loss(entry: Entry, output: Any, target: Tensor | None) -> Tensor:
    if entry.loss == "none":
        return output
    return (
        functional.mse_loss(output, target)
        if entry.loss == "mse"
        else functional.cross_entropy(output, target)
    )


def _export(exporter: str, model: nn.Module, batch: dict[str, np.ndarray], entry: Entry, path: Path) -> None:
    given = tuple(torch.from_numpy(batch[n]) for n in entry.inputs)
    common: dict[str, Any] = {"input_names": list(entry.inputs), "output_names": ["output"]}
    if exporter == "legacy":
        free = {n: {0: "batch"} for n in entry.inputs}
        training = torch.onnx.TrainingMode.TRAINING
        torch.onnx.export(
            model, given, str(path), dynamo=False, opset_version=entry.opset, dynamic_axes=free,
            training=training, do_constant_folding=False, **common,
        )  # fmt: skip
        return
    batch_size = torch.export.Dim("batch", min=2, max=4096)
    shapes = tuple({0: batch_size} for _ in given)
    if hasattr(model, "names"):
        shapes = (shapes,)
    torch.onnx.export(
        model, given, str(path), dynamo=True, opset_version=DYNAMO_OPSET, dynamic_shapes=shapes,
        external_data=False, verbose=False, optimize=False, **common,
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), [a for a in sys.argv[2:] if not a.startswith("-")])
