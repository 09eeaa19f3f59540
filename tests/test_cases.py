"""Trimmed trainers against ONNX Runtime's recorded numbers and against the float64 reference.

Everything is held in units of what is unavoidable: the noise recorded with each set (how far ONNX Runtime's
own runs differ when parameters start one rounding unit up or down), and rounding units of float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from case_sets import EVAL, TRAIN, CaseSet, folders, load, trainer

from minbuild.artifacts.checkpoint import read_checkpoint
from minbuild.interpreter import ReferenceTrainer
from minbuild.model import Checkpoint

NOISES = 4  # allowed, in units of the recorded noise
UNIT = 2.0**-24
KINKED = {"Relu", "Clip", "MaxPool"}

each_case = pytest.mark.parametrize("folder", folders(), ids=lambda p: p.name)


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
    operators = {n.op_type for n in case.bundle.training.nodes}
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
    few elements by much."""
    complain(
        {
            name: float(np.linalg.norm(found[name] - reference) / np.linalg.norm(reference)) / relative
            for name, reference in wanted.items()
            if name not in meaningless(case)
        }
    )


def exact_gradients(case: CaseSet, start: Checkpoint, step: int) -> dict[str, np.ndarray]:
    """The gradients of a recorded step in float64."""
    exact = ReferenceTrainer(case.bundle)
    exact.load(start)
    exact.train_step(*case.batch(step))
    return exact.gradients


def gradient_noise(case: CaseSet) -> float:
    return max(case.meta["noise"]["grad1_rel_max"], 4 * UNIT)


def after_optimizer(
    case: CaseSet, start: Checkpoint, made: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Parameters after one exact update from `start` with these gradients."""
    exact = ReferenceTrainer(case.bundle)
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


@each_case
def test_first_step_is_onnx_runtimes(folder):
    case = load(folder)
    session = trainer(folder).session(case.checkpoint)
    session.learning_rate = case.rate
    first = case.meta["noise"]["loss_per_step"][0]
    if case.bundle.evaluation is not None and "eval_before" in case.reference:
        outputs = session.run(EVAL, case.eval_batch())
        close(loss_of(outputs), case.losses("eval_before")[0], first, "evaluation")
        check_outputs(case, session, EVAL, outputs, "eval_before_out")
    outputs = session.run(TRAIN, case.batch(0))
    close(loss_of(outputs), case.losses()[0], first)
    check_outputs(case, session, TRAIN, outputs, "train_out_first")
    recorded = case.recorded("grad_step1")
    made = gradients(session, recorded)
    exact = exact_gradients(case, case.bundle.checkpoint, 0)
    check_gradients(case, made, recorded, gradient_noise(case), exact)
    session.optimizer_step()
    check_update(case, case.bundle.checkpoint, session, made, recorded, case.recorded("param_step1"))
    if (held := case.recorded("opt_step1")) and session.step_count == 1:
        check_moments(case, session, held)


def check_moments(case: CaseSet, session, recorded: Mapping[str, np.ndarray]) -> None:
    (group,) = read_checkpoint(session.checkpoint(True)).groups
    assert group.step == 1
    for key, wanted in recorded.items():
        name, moment = key.rsplit("/", 1)
        if name in meaningless(case) or name not in group.moments:
            continue
        scale = max(np.abs(wanted).max(), np.finfo(np.float32).tiny)
        assert worst(group.moments[name][moment], wanted, 2 * NOISES * gradient_noise(case) * scale) <= 1, key


@each_case
def test_trajectory_stays_within_noise(folder):
    case = load(folder)
    session = trainer(folder).session(case.checkpoint)
    session.learning_rate = case.rate
    for step in range(case.meta["steps"]):
        outputs = session.run(TRAIN, case.batch(step))
        close(loss_of(outputs), case.losses()[step], noise(case), f"loss of step {step}")
        session.optimizer_step()
        session.lazy_reset_grad()
    if not jumps(case):
        check_outputs(case, session, TRAIN, outputs, "train_out_last")
    if case.bundle.evaluation is not None and "eval_after" in case.reference:
        after = loss_of(session.run(EVAL, case.eval_batch()))
        close(after, case.losses("eval_after")[0], noise(case), "evaluation")
    allowed = case.meta["noise"]["param_final_abs"]
    # How far the recorded run was from a float64 one, where there was one.
    drift = case.meta.get("torch64", {}).get("param_final_max_diff_excl_zero_grad", 0)
    deviations = {}
    for name, wanted in case.recorded("param_final").items():
        if name in allowed and name not in meaningless(case):
            limit = NOISES * max(allowed[name], drift, 2 * UNIT * np.abs(wanted).max())
            deviations[name] = worst(session.parameter(name), wanted, limit)
    complain(deviations)


@each_case
def test_resumed_step_is_onnx_runtimes(folder):
    case = load(folder)
    if not (folder / "checkpoint_final_opt").is_file():
        pytest.skip("no checkpoint with optimizer state was kept")
    data, start = case.trained
    session = trainer(folder).session(data)
    session.learning_rate = case.rate
    assert session.step_count == (start.groups[0].step if start.groups else 0)
    first = case.meta["steps"]
    losses = case.losses("loss_resume_opt")
    close(
        loss_of(session.run(TRAIN, case.batch(first))),
        losses[0],
        case.meta["noise"]["loss_per_step"][0],
    )
    recorded = case.recorded("resume1_grad")
    made = gradients(session, recorded)
    check_gradients(case, made, recorded, gradient_noise(case), exact_gradients(case, start, first))
    session.optimizer_step()
    check_update(case, start, session, made, recorded, case.recorded("resume1_param"))
    session.lazy_reset_grad()
    for step, wanted in enumerate(losses[1:], first + 1):
        close(loss_of(session.run(TRAIN, case.batch(step))), wanted, noise(case), f"loss of step {step}")
        session.optimizer_step()
        session.lazy_reset_grad()


@pytest.mark.parametrize(
    "folder", [f for f in folders() if f.name in ("mlp", "mlp_sgd", "lenet")], ids=lambda p: p.name
)
def test_gradients_accumulate_as_onnx_runtimes(folder):
    """Two batches for each update; then updates whose gradients are never reset."""
    case = load(folder)
    session = trainer(folder).session(case.checkpoint)
    session.learning_rate = case.rate
    for step, wanted in enumerate(case.losses("accum_loss")):
        close(loss_of(session.run(TRAIN, case.batch(step))), wanted, noise(case), f"loss of step {step}")
        if step == 1:
            recorded = case.recorded("accum_grad_step1")
            check_gradients(case, gradients(session, recorded), recorded, gradient_noise(case))
        if step % 2 == 1:
            session.optimizer_step()
            session.lazy_reset_grad()
    check_end(case, session, "accum_param_final")
    session = trainer(folder).session(case.checkpoint)
    session.learning_rate = case.rate
    for step, wanted in enumerate(case.losses("noreset_loss")):
        close(loss_of(session.run(TRAIN, case.batch(step))), wanted, noise(case), f"loss of step {step}")
        session.optimizer_step()
    check_end(case, session, "noreset_param_final")


def check_end(case: CaseSet, session, kind: str) -> None:
    allowed = case.meta["noise"]["param_final_abs"]
    complain(
        {
            n: worst(session.parameter(n), x, NOISES * max(allowed[n], 4 * UNIT * np.abs(x).max()))
            for n, x in case.recorded(kind).items()
        }
    )


@each_case
def test_any_batch_size_matches_the_reference(folder):
    """One package at batch 1, 3 and 32, against float64: the losses of three steps (of one where masks may
    flip) and the gradients of the first."""
    case = load(folder)
    built = trainer(folder)
    for size in (len(case.batch(0)[0]),) if case.fixed else (3, 1, 32):
        session = built.session(case.checkpoint)
        exact = ReferenceTrainer(case.bundle)
        session.learning_rate = exact.learning_rate = case.rate
        batch, scale = case.samples(size), 0.0
        for step in range(1 if jumps(case) else 3):
            found, wanted = session.run(TRAIN, batch), exact.train_step(*batch)
            scale = max(abs(loss_of(wanted)), 0.1)
            close(
                loss_of(found),
                loss_of(wanted),
                max(noise(case), 4 * UNIT * scale),
                f"batch {size}, step {step}",
            )
            if step == 0:
                wanted_gradients = {n: g.copy() for n, g in exact.gradients.items()}
                made = gradients(session, wanted_gradients)
                if jumps(case):
                    check_lengths(case, made, wanted_gradients, 0.05)
                else:
                    check_gradients(case, made, wanted_gradients, 2 * gradient_noise(case))
            session.optimizer_step()
            session.lazy_reset_grad()
            exact.optimizer_step()
            exact.lazy_reset_grad()


@each_case
def test_fixed_batch_computes_the_same(folder):
    """A package made for one batch size is another plan and another library. Equal bits cannot be asked for:
    what depends on the size only is computed when it is built."""
    case = load(folder)
    if case.fixed:
        pytest.skip("the artifacts have a fixed batch size")
    free, fixed = trainer(folder), trainer(folder, len(case.batch(0)[0]))
    assert not fixed.plan.symbols
    sessions = [t.session(case.checkpoint) for t in (free, fixed)]
    losses = [loss_of(s.run(TRAIN, case.batch(0))) for s in sessions]
    close(losses[1], losses[0], 0)
    names = case.recorded("grad_step1")
    check_gradients(
        case, gradients(sessions[1], names), gradients(sessions[0], names), gradient_noise(case) / 2
    )
