"""Trimmed trainers against ONNX Runtime's recorded numbers and against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import (
    NOISES,
    UNIT,
    check_end,
    check_gradients,
    check_lengths,
    check_moments,
    check_outputs,
    check_update,
    close,
    complain,
    exact_gradients,
    gradient_noise,
    gradients,
    jumps,
    loss_of,
    meaningless,
    noise,
    worst,
)
from case_sets import EVAL, TRAIN, folders, load, trainer

from minbuild.reference.interpreter import ReferenceTrainer

each_case = pytest.mark.parametrize("folder", folders(), ids=lambda p: p.name)


@each_case
def test_first_step_is_onnx_runtimes(folder):
    case = load(folder)
    session = trainer(folder).session(case.checkpoint)
    session.learning_rate = case.rate
    first = case.meta["noise"]["loss_per_step"][0]
    if case.artifacts.evaluation is not None and "eval_before" in case.reference:
        outputs = session.run(EVAL, case.eval_batch())
        close(loss_of(outputs), case.losses("eval_before")[0], first, "evaluation")
        check_outputs(case, session, EVAL, outputs, "eval_before_out")
    outputs = session.run(TRAIN, case.batch(0))
    close(loss_of(outputs), case.losses()[0], first)
    check_outputs(case, session, TRAIN, outputs, "train_out_first")
    recorded = case.recorded("grad_step1")
    made = gradients(session, recorded)
    exact = exact_gradients(case, case.artifacts.checkpoint, 0)
    check_gradients(case, made, recorded, gradient_noise(case), exact)
    session.optimizer_step()
    check_update(case, case.artifacts.checkpoint, session, made, recorded, case.recorded("param_step1"))
    if (held := case.recorded("opt_step1")) and session.step_count == 1:
        check_moments(case, session, held)


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
    if case.artifacts.evaluation is not None and "eval_after" in case.reference:
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


@each_case
def test_any_batch_size_matches_the_reference(folder):
    """One package at batch 1, 3 and 32, against float64: the losses of three steps (of one where masks may
    flip) and the gradients of the first."""
    case = load(folder)
    built = trainer(folder)
    for size in (len(case.batch(0)[0]),) if case.fixed else (3, 1, 32):
        session = built.session(case.checkpoint)
        exact = ReferenceTrainer(case.artifacts)
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
