"""What counts as the same numbers.

Everything is held in units of what is unavoidable: the noise recorded with each set (how far ONNX Runtime's
own runs differ when parameters start one rounding unit up or down), and rounding units of float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from case_sets import CaseSet

from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.ir import Checkpoint
from minbuild.reference.interpreter import ReferenceTrainer

NOISES = 4  # allowed, in units of the recorded noise
UNIT = 2.0**-24
KINKED = {"Relu", "Clip", "MaxPool"}


def loss_of(outputs: list[np.ndarray]) -> float:
    return float(outputs[0].ravel()[0])


def close(found: float, wanted: float, noise: float, what: str = "loss") -> None:
    allowed = NOISES * max(noise, 2 * UNIT * abs(wanted))
    assert abs(found - wanted) <= allowed, (
        f"{what}: {found} instead of {wanted}: {abs(found - wanted) / allowed:.2g} times too far"
    )


def worst(found: np.ndarray, wanted: np.ndarray, allowed: np.ndarray | float) -> float:
    """The largest deviation in units of what is allowed."""
    assert found.shape == wanted.shape
    return float(np.max(np.abs(found - wanted.astype(np.float64)) / allowed, initial=0))


def complain(deviations: Mapping[str, float]) -> None:
    bad = {n: round(d, 2) for n, d in deviations.items() if not d <= 1}
    assert not bad, f"times as far off as allowed: {bad}"


def noise(case: CaseSet) -> float:
    return max(case.meta["noise"]["loss_per_step"])


def meaningless(case: CaseSet) -> frozenset[str]:
    """Parameters whose true gradient is zero: what is computed for them is rounding noise."""
    return frozenset(case.meta.get("torch64", {}).get("true_gradient_is_zero", ()))


def jumps(case: CaseSet) -> bool:
    """Whether rounding can flip a mask behind a normalisation, which changes everything after it visibly."""
    operators = {n.op_type for n in case.artifacts.training.nodes}
    return "BatchNormInternal" in operators and bool(operators & KINKED)


def gradients(session, names: Iterable[str]) -> dict[str, np.ndarray]:
    found = {n: session.gradient(n) for n in names}
    return {n: g.copy() for n, g in found.items() if g is not None}


def check_gradients(
    case: CaseSet,
    found: Mapping[str, np.ndarray],
    wanted: Mapping[str, np.ndarray],
    relative: float,
    exact: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Each gradient within noise of what is wanted. Where that is itself further from `exact`, the noise did
    not catch all there is: then that distance counts."""
    largest = max(np.abs(g).max() for g in wanted.values())
    deviations = {}
    for name, reference in wanted.items():
        scale = largest if name in meaningless(case) else max(np.abs(reference).max(), UNIT * largest)
        allowed = NOISES * relative * scale
        if exact is not None:
            allowed = max(allowed, NOISES * np.abs(reference - exact[name]).max())
            deviations[f"{name} exactly"] = worst(found[name], exact[name], allowed)
        deviations[name] = worst(found[name], reference, allowed)
    complain(deviations)


def check_lengths(
    case: CaseSet, found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], relative: float
) -> None:
    """Each gradient as a vector is as wanted but for a small part of its length: a mask that flips changes
    few elements by much. One that is zero but for rounding (behind the normalisation of a single number, as a batch
    of one may be) is held in units of the longest."""
    lengths = {name: float(np.linalg.norm(reference)) for name, reference in wanted.items()}
    shortest = 256 * UNIT * max(lengths.values())
    complain(
        {
            name: float(np.linalg.norm(found[name] - reference)) / max(lengths[name], shortest) / relative
            for name, reference in wanted.items()
            if name not in meaningless(case)
        }
    )


def exact_gradients(case: CaseSet, start: Checkpoint, step: int) -> dict[str, np.ndarray]:
    """The gradients of a recorded step in float64."""
    exact = ReferenceTrainer(case.artifacts)
    exact.load(start)
    exact.train_step(*case.batch(step))
    return exact.gradients


def gradient_noise(case: CaseSet) -> float:
    return max(case.meta["noise"]["grad1_rel_max"], 4 * UNIT)


def after_optimizer(
    case: CaseSet, start: Checkpoint, made: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Parameters after one exact update from `start` with these gradients."""
    exact = ReferenceTrainer(case.artifacts)
    exact.load(start)
    exact.learning_rate = case.rate
    exact.gradients = {n: g.astype(np.float64) for n, g in made.items()}
    exact.optimizer_step()
    return exact.parameters


def update_sizes(case: CaseSet, start: Checkpoint, made: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """How large the parts are that an update adds up: what its rounding errors are measured by."""
    groups = tuple(
        replace(g, moments={p: {n: np.abs(a) for n, a in m.items()} for p, m in g.moments.items()})
        for g in start.groups
    )
    parameters = tuple(replace(p, data=np.zeros_like(p.data)) for p in start.parameters)
    sized = replace(start, parameters=parameters, groups=groups)
    return {
        n: np.abs(p) for n, p in after_optimizer(case, sized, {n: np.abs(g) for n, g in made.items()}).items()
    }


def check_update(
    case: CaseSet, start: Checkpoint, session, made, theirs, recorded: Mapping[str, np.ndarray]
) -> None:
    """Parameters after one update: exact for our gradients but for rounding, and as far from ONNX Runtime's
    as the difference of the gradients makes them."""
    ours, other = after_optimizer(case, start, made), after_optimizer(case, start, theirs)
    sizes = update_sizes(case, start, made)
    deviations = {}
    for name in theirs:
        rounding = 6 * UNIT * (np.abs(ours[name]) + sizes[name] + 1e-30)
        found = session.parameter(name)
        deviations[f"{name} exactly"] = worst(found, ours[name], rounding)
        allowed = 2 * rounding + np.abs(ours[name] - other[name])
        deviations[f"{name} as recorded"] = worst(found, recorded[name], allowed)
    complain(deviations)
    for name in set(recorded) - set(theirs):  # running statistics
        scale = np.abs(recorded[name]).max()
        assert worst(session.parameter(name), recorded[name], 32 * UNIT * scale) <= 1, name


def check_outputs(case: CaseSet, session, graph: int, outputs: list[np.ndarray], kind: str) -> None:
    for name, wanted in case.recorded(kind).items():
        found = outputs[session.names(graph, True).index(name)]
        assert found.dtype == wanted.dtype
        allowed = (
            max(NOISES * noise(case), 16 * UNIT * np.abs(wanted).max(initial=0))
            if wanted.dtype.kind == "f"
            else 0.5
        )
        assert worst(found.reshape(wanted.shape), wanted, allowed) <= 1, name


def check_moments(case: CaseSet, session, recorded: Mapping[str, np.ndarray]) -> None:
    (group,) = read_checkpoint(session.checkpoint(True)).groups
    assert group.step == 1
    for key, wanted in recorded.items():
        name, moment = key.rsplit("/", 1)
        if name in meaningless(case) or name not in group.moments:
            continue
        scale = max(np.abs(wanted).max(), np.finfo(np.float32).tiny)
        assert worst(group.moments[name][moment], wanted, 2 * NOISES * gradient_noise(case) * scale) <= 1, key


def check_end(case: CaseSet, session, kind: str) -> None:
    allowed = case.meta["noise"]["param_final_abs"]
    complain(
        {
            n: worst(session.parameter(n), x, NOISES * max(allowed[n], 4 * UNIT * np.abs(x).max()))
            for n, x in case.recorded(kind).items()
        }
    )
