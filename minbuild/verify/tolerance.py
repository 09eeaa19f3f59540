"""The distance between a trainer and a recorded trajectory, in units of the recording's own noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from minbuild.errors import BadInput
from minbuild.verify.kinks import Kink, KinkFinder
from minbuild.verify.script import Results
from minbuild.verify.trajectory import RESUMED, Reference

# Noise was measured on a handful of runs: an honest one may lie further out, more so where training has
# magnified it.
STRICT_LIMIT, LOOSE_LIMIT = 4.0, 10.0
_EPSILON = 2.0**-23  # of float32
_MAGNIFIED = ("loss", "resume loss", "eval after")


@dataclass(frozen=True, slots=True)
class Deviation:
    """The worst of one quantity: in units of noise, as an absolute number, where, and what is allowed."""

    what: str
    noise: float
    absolute: float
    where: str
    kinks: tuple[Kink, ...] = ()  # decided otherwise, which explains the rest: shown, never assumed

    @property
    def limit(self) -> float:
        """Units of noise allowed: few before training has magnified rounding."""
        return LOOSE_LIMIT if self.what in _MAGNIFIED else STRICT_LIMIT


def deviations(
    reference: Reference, results: Results, finders: Mapping[str, KinkFinder] | None = None
) -> tuple[Deviation, ...]:
    """The worst deviation of `results` from `reference`, for each quantity that was recorded. `finders` look for kinks
    where gradients of a kind are off."""
    arrays, noise = reference.arrays, _loss_noise(reference)
    losses = _losses(results)
    found = [
        _loss("loss", "loss", losses=losses, recorded=arrays["loss"], noise=noise, count=reference.steps)
    ]
    for kind, label in (("grad_step1", "step-1 gradients"), ("resume1_grad", "resume-step gradients")):
        found += _gradients(reference, results, kind, label, (finders or {}).get(kind))
    for kind, gradient, label in (
        ("param_step1", "grad_step1", "step-1 parameters"),
        ("resume1_param", "resume1_grad", "resume-step parameters"),
    ):
        found += _parameters(reference, results, kind, gradient, label)
    if "loss_resume_opt" in arrays:
        worst = np.full(RESUMED, noise.max())
        worst[0] = noise[0]
        recorded = arrays["loss_resume_opt"][:RESUMED]
        found.append(
            _loss("resume loss", "resume", losses=losses, recorded=recorded, noise=worst, count=len(recorded))
        )
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
    """Noise of the loss per step, never below rounding, and never below that of an earlier step: training
    carries it on."""
    recorded = np.broadcast_to(
        np.asarray(reference.noise.get("loss_per_step", 0.0), float), (reference.steps,)
    )
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


def _of_kind(
    reference: Reference, results: Results, kind: str
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
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
    """Parameter -> noise of its gradient: what was recorded, but not below the rounding of its own sum, and
    for tensors that are zero but for rounding of all sums."""
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


def _gradients(
    reference: Reference, results: Results, kind: str, label: str, finder: KinkFinder | None
) -> list[Deviation]:
    noise = _gradient_noise(reference, kind)
    both = {n: (found, recorded) for n, found, recorded in _of_kind(reference, results, kind)}
    if not both:
        return []

    def worst(found: Mapping[str, np.ndarray]) -> Deviation:
        each = [_deviation(label, found[n], recorded, noise[n], n) for n, (_, recorded) in both.items()]
        return max(each, key=lambda d: d.noise)

    deviation = worst({n: found for n, (found, _) in both.items()})
    if deviation.noise <= STRICT_LIMIT or not math.isfinite(deviation.noise) or finder is None:
        return [deviation]
    found, recorded = ({n: pair[i] for n, pair in both.items()} for i in range(2))
    explained = finder.explain(found, recorded, noise, STRICT_LIMIT)
    return [deviation if explained is None else replace(worst(explained[1]), kinks=explained[0])]


def _parameters(
    reference: Reference, results: Results, kind: str, gradient: str, label: str
) -> list[Deviation]:
    """After one step from equal parameters: their rounding, and what the noise of the gradient can do. An
    optimizer that scales by the gradient's own size turns a relative error of the gradient into one of a step
    of size `rate`."""
    noise = _gradient_noise(reference, gradient)
    each = []
    for parameter, found, recorded in _of_kind(reference, results, kind):
        unit = 2 * _EPSILON * np.maximum(np.abs(recorded), 2.0**-10)
        slope = reference.arrays.get(f"{gradient}/{parameter}")
        if slope is not None:
            # What the gradient itself is off by is judged above.
            off = np.abs(results.get(f"{gradient}/{parameter}", slope).astype(np.float64) - slope)
            apart = np.maximum(noise[parameter], off)
            relative = apart / np.maximum(np.abs(slope), apart)
            unit = unit + reference.rate * relative * np.maximum(1.0, np.abs(slope))
        else:  # running statistics: sums over the batch
            unit = unit + 8 * _EPSILON * np.abs(recorded).max(initial=0)
        each.append(_deviation(label, found, recorded, unit, parameter))
    return [max(each, key=lambda d: d.noise)] if each else []


def describe(found: Iterable[Deviation]) -> str:
    """All deviations in one line, the worst first."""
    ordered = sorted(found, key=lambda d: -d.noise)
    return "; ".join(
        f"{d.what} {d.noise:.2g} ({d.absolute:.2g} at {d.where}"
        + "".join(f", where {kink}" for kink in d.kinks)
        + ")"
        for d in ordered
    )
