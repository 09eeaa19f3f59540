"""A recorded trajectory replayed: how far a trainer is from the reference, in units of the reference's own noise.

The layout of the recording is that of `tests/golden/README.md`: an `.npz` with inputs and results, and beside it
`meta.json` (learning rate, steps, noise) and `checkpoint_final_opt`, both optional."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.artifacts.files import read_file
from minbuild.batches import inputs_of, sizes_in
from minbuild.errors import BadInput
from minbuild.model import Program
from minbuild.replay import Action, Results, Trial

LIMIT = 10.0  # noise was measured on a handful of runs: an honest one may lie further out
_EPSILON = 2.0**-23  # of float32
_RESUMED = 3  # steps after the last checkpoint


@dataclass(frozen=True, slots=True)
class Reference:
    """A recording: arrays by name, and what meta.json says."""

    path: Path
    arrays: Mapping[str, np.ndarray]
    rate: float
    batches: int
    noise: Mapping[str, Any]
    resume: bytes | None  # checkpoint after the last step, with optimizer state

    @property
    def steps(self) -> int:
        return len(self.arrays["loss"])


@dataclass(frozen=True, slots=True)
class Deviation:
    """The worst of one quantity: in units of noise, as an absolute number, and where. `strict` ones decide alone; the
    others are where rounding has been magnified by training."""

    what: str
    noise: float
    absolute: float
    where: str


def read_reference(path: Path) -> Reference:
    """A recording and what lies beside it. Raises BadInput."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise BadInput(f"--reference {path}: no such file. Give the .npz of a recorded trajectory.") from None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise BadInput(f"--reference {path}: cannot be read as .npz: {error}. Record or copy it again.") from error
    if not arrays.get("loss", np.empty(0)).size:
        raise BadInput(f"--reference {path}: holds no 'loss' per step. Give the .npz of a recorded trajectory.")
    for name in {"loss", "loss_resume_opt"} & set(arrays):  # a loss is a scalar or has one element
        arrays[name] = arrays[name].reshape(len(arrays[name]), -1)[:, 0]
    meta = _meta(path.with_name("meta.json"))
    recorded = [len(a) for n, a in arrays.items() if n.startswith("in/") and a.ndim]
    if not recorded or not all(recorded):
        raise BadInput(f"--reference {path}: holds no 'in/<input>' batches. Record it again.")
    final = path.with_name("checkpoint_final_opt")
    return Reference(
        path,
        arrays,
        float(meta.get("lr", 0.001)),
        min(int(meta.get("n_batches", min(recorded))), min(recorded)),
        meta.get("noise", {}),
        read_file(final) if final.is_file() else None,
    )


def _meta(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        meta = json.loads(read_file(path))
    except ValueError as error:
        raise BadInput(f"{path}: not readable as JSON: {error}. Correct it, or move it away.") from error
    return meta if isinstance(meta, dict) else {}


def reference_trial(reference: Reference, program: Program, checkpoint: bytes) -> Trial:
    """The recording's own steps, and the first ones after its last checkpoint. Raises BadInput when its batches do not
    fit the model."""
    inputs, arrays = inputs_of(program), reference.arrays
    batches: dict[str, tuple[np.ndarray, ...]] = {}
    sizes: dict[str, int] = {}
    order = {p.name: p.inputs for p in program.procedures}
    for number in range(reference.batches):
        batch = {n: arrays[f"in/{n}"][number] for n in order["train"] if f"in/{n}" in arrays}
        sizes |= _fit(reference, {n: inputs[n] for n in order["train"]}, batch, sizes)
        batches[f"train {number}"] = tuple(batch[n] for n in order["train"])
    evaluated = "eval_before" in arrays and "eval" in order
    if evaluated:
        batch = {n: arrays[f"eval_in/{n}"] for n in order["eval"] if f"eval_in/{n}" in arrays}
        sizes |= _fit(reference, {n: inputs[n] for n in order["eval"]}, batch, sizes)
        batches["eval"] = tuple(batch[n] for n in order["eval"])
    checkpoints = {"start": checkpoint} | ({"resume": reference.resume} if reference.resume else {})
    actions = tuple(_actions(reference, evaluated, "optimize" in order))
    return Trial(tuple(sizes[s] for s in program.symbols), batches, checkpoints, actions)


def _fit(
    reference: Reference, inputs: Mapping[str, Any], batch: Mapping[str, np.ndarray], before: Mapping[str, int]
) -> dict[str, int]:
    found = sizes_in(inputs, batch, f"--reference {reference.path}")
    return {name: max(size, before.get(name, 0)) for name, size in found.items()}


def _actions(reference: Reference, evaluated: bool, optimizes: bool) -> Iterator[Action]:
    optimizer = [Action("optimizer")] if optimizes else []
    rate = Action("rate", repr(reference.rate))
    yield from (Action("create", "start"), rate)
    if evaluated:
        yield Action("eval", "eval", "eval_before")
    for step in range(reference.steps):
        yield Action("train", f"train {step % reference.batches}", f"loss {step}")
        if step == 0:
            yield Action("gradients", label="grad_step1")
        yield from (*optimizer, Action("reset"))
        if step == 0:
            yield Action("parameters", label="param_step1")
    if evaluated:
        yield Action("eval", "eval", "eval_after")
    if reference.resume is None or "loss_resume_opt" not in reference.arrays:
        return
    yield from (Action("create", "resume"), rate)
    for step in range(min(_RESUMED, len(reference.arrays["loss_resume_opt"]))):
        yield Action("train", f"train {(reference.steps + step) % reference.batches}", f"resume {step}")
        if step == 0:
            yield Action("gradients", label="resume1_grad")
        yield from (*optimizer, Action("reset"))
        if step == 0:
            yield Action("parameters", label="resume1_param")


def deviations(reference: Reference, results: Results) -> tuple[Deviation, ...]:
    """The worst deviation of each quantity that was recorded, worst first among equals of one quantity."""
    arrays, noise = reference.arrays, _loss_noise(reference)
    losses = {n: a for n, a in _losses(results).items()}
    found = [_loss("loss", "loss", losses, arrays["loss"], noise, reference.steps)]
    for kind, label in (("grad_step1", "step-1 gradients"), ("resume1_grad", "resume-step gradients")):
        found += _gradients(reference, results, kind, label)
    for kind, gradient, label in (
        ("param_step1", "grad_step1", "step-1 parameters"),
        ("resume1_param", "resume1_grad", "resume-step parameters"),
    ):
        found += _parameters(reference, results, kind, gradient, label)
    if "loss_resume_opt" in arrays:
        worst = np.full(_RESUMED, noise.max())
        worst[0] = noise[0]
        recorded = arrays["loss_resume_opt"][:_RESUMED]
        found.append(_loss("resume loss", "resume", losses, recorded, worst, len(recorded)))
    for name, unit in (("eval_before", noise[0]), ("eval_after", noise.max())):
        if name in arrays and name in losses:
            found.append(_deviation(name.replace("_", " "), losses[name], arrays[name], unit, name))
    return tuple(d for d in found if d is not None)


def _losses(results: Results) -> dict[str, np.ndarray]:
    """The first output of every step, which is the loss, by the step's label."""
    losses: dict[str, np.ndarray] = {}
    for name, array in results.items():
        losses.setdefault(name.split("/")[0], array.reshape(-1)[:1])
    return losses


def _loss_noise(reference: Reference) -> np.ndarray:
    """Noise of the loss per step, never below rounding, and never below that of an earlier step: training carries it on."""
    recorded = np.broadcast_to(np.asarray(reference.noise.get("loss_per_step", 0.0), float), (reference.steps,))
    rounding = 2 * _EPSILON * np.maximum(np.abs(reference.arrays["loss"].astype(float)), 2.0**-6)
    return np.maximum.accumulate(np.maximum(recorded, rounding))


def _loss(
    what: str, label: str, losses: Results, recorded: np.ndarray, noise: np.ndarray, count: int
) -> Deviation | None:
    each = [
        _deviation(what, losses[f"{label} {i}"], recorded[i], noise[i], f"step {i + 1}")
        for i in range(count)
        if f"{label} {i}" in losses
    ]
    return max(each, key=lambda d: d.noise, default=None)


def _deviation(
    what: str, found: np.ndarray, recorded: np.ndarray, unit: np.ndarray | float, where: str
) -> Deviation:
    error = np.abs(found.astype(np.float64).reshape(-1) - np.asarray(recorded, np.float64).reshape(-1))
    both_bad = ~np.isfinite(found.reshape(-1)) & ~np.isfinite(np.asarray(recorded).reshape(-1))
    error = np.where(both_bad, 0.0, np.where(np.isfinite(error), error, np.inf))
    units = error / np.maximum(np.broadcast_to(np.asarray(unit, np.float64).reshape(-1), error.shape), 1e-30)
    return Deviation(what, float(units.max(initial=0)), float(error.max(initial=0)), where)


def _of_kind(reference: Reference, results: Results, kind: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Parameters with a tensor of this kind on both sides. Raises BadInput on another shape."""
    prefix = f"{kind}/"
    for name in (n for n in reference.arrays if n.startswith(prefix)):
        parameter, recorded = name.removeprefix(prefix), reference.arrays[name]
        found = results.get(name)
        if found is None:
            continue
        if found.shape != recorded.shape:
            raise BadInput(
                f"--reference {reference.path}: {name} has shape {list(recorded.shape)}, the model's is "
                f"{list(found.shape)}. It belongs to another model."
            )
        yield parameter, found, recorded


def _gradient_noise(reference: Reference, kind: str) -> dict[str, float]:
    """Parameter -> noise of its gradient: what was recorded, but not below the rounding of its own sum, and for tensors
    that are zero but for rounding of all sums."""
    prefix = f"{kind}/"
    largest = {
        n.removeprefix(prefix): float(np.abs(a).max(initial=0))
        for n, a in reference.arrays.items()
        if n.startswith(prefix)
    }
    floor = max(largest.values(), default=0.0) * _EPSILON / 16
    recorded = reference.noise.get("grad1_abs", {})
    relative = max(float(reference.noise.get("grad1_rel_max", 0.0)), 2 * _EPSILON)
    return {n: max(float(recorded.get(n, 0.0)), relative * top, floor) for n, top in largest.items()}


def _gradients(reference: Reference, results: Results, kind: str, label: str) -> list[Deviation]:
    noise = _gradient_noise(reference, kind)
    each = [_deviation(label, f, r, noise[p], p) for p, f, r in _of_kind(reference, results, kind)]
    return [max(each, key=lambda d: d.noise)] if each else []


def _parameters(reference: Reference, results: Results, kind: str, gradient: str, label: str) -> list[Deviation]:
    """After one step from equal parameters: their rounding, and what the noise of the gradient can do. An optimizer that
    scales by the gradient's own size turns a relative error of the gradient into one of a step of size `rate`."""
    noise = _gradient_noise(reference, gradient)
    each = []
    for parameter, found, recorded in _of_kind(reference, results, kind):
        unit = 2 * _EPSILON * np.maximum(np.abs(recorded), 2.0**-10)
        slope = reference.arrays.get(f"{gradient}/{parameter}")
        if slope is not None:
            relative = noise[parameter] / np.maximum(np.abs(slope), noise[parameter])
            unit = unit + reference.rate * relative * np.maximum(1.0, np.abs(slope))
        else:  # running statistics: sums over the batch
            unit = unit + 8 * _EPSILON * np.abs(recorded).max(initial=0)
        each.append(_deviation(label, found, recorded, unit, parameter))
    return [max(each, key=lambda d: d.noise)] if each else []


def check(reference: Reference, found: tuple[Deviation, ...]) -> str:
    """All deviations in one sentence; what exceeds the limit stands first."""
    ordered = sorted(found, key=lambda d: -d.noise)
    return "; ".join(f"{d.what} {d.noise:.2g} ({d.absolute:.2g} at {d.where})" for d in ordered)
