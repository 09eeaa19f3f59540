"""Files of every release, kept in `tests/compatibility/`: what `docs/releasing.md` promises of them holds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from case_sets import GOLDEN, TRAIN, load, trainer

from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.ir import fingerprint_of
from minbuild.planning.plan_encoding import VERSION, decode_plan
from minbuild.training.library import Session, TrainerError

KEPT = sorted(p.parent for p in (Path(__file__).parents[1] / "compatibility").glob("*/*/checkpoint"))
BAD_PLAN, MISSING_KERNEL = 2, 3
each_kept = pytest.mark.parametrize("folder", KEPT, ids=lambda p: f"{p.parent.name}-{p.name}")


def test_there_are_files_of_a_release():
    assert KEPT


def losses(folder: Path) -> list[float]:
    return json.loads((folder / "losses.json").read_text())


@each_kept
def test_checkpoints_are_read_and_trained_on(folder):
    """Parameters, moments, step count and learning rate, bit for bit; the next loss but for rounding."""
    case, built = load(GOLDEN / folder.name), trainer(GOLDEN / folder.name)
    data = (folder / "checkpoint").read_bytes()
    kept, session = read_checkpoint(folder / "checkpoint"), built.session(data)
    assert (session.step_count, session.learning_rate, kept.groups[0].step) == (2, np.float32(0.01), 2)
    for parameter in kept.parameters:
        assert np.array_equal(session.parameter(parameter.name), parameter.data), parameter.name
    again = read_checkpoint(session.checkpoint(True))
    for name, moments in kept.groups[0].moments.items():
        for moment, array in moments.items():
            assert np.array_equal(again.groups[0].moments[name][moment], array), (name, moment)
    assert np.allclose(session.run(TRAIN, case.batch(2))[0], losses(folder)[2], rtol=1e-5)


@each_kept
def test_checkpoints_without_optimizer_state_are_read(folder):
    session = trainer(GOLDEN / folder.name).session((folder / "parameters").read_bytes())
    assert session.step_count == 0
    for parameter in read_checkpoint(folder / "parameters").parameters:
        assert np.array_equal(session.parameter(parameter.name), parameter.data), parameter.name


@each_kept
def test_the_fingerprint_of_a_model_stays(folder):
    """Else every checkpoint out there would be another model's after an update of the library."""
    seal = read_checkpoint(folder / "checkpoint").seal
    assert seal is not None and seal.fingerprint == fingerprint_of(load(GOLDEN / folder.name).artifacts)


@each_kept
def test_a_plan_runs_as_it_did_or_is_refused(folder):
    """A library refuses plans of other versions, and of kernels that it does not have; it runs all others."""
    case, library = load(GOLDEN / folder.name), trainer(GOLDEN / folder.name).library
    plan = (folder / "trainer.plan").read_bytes()
    try:
        session = Session(library, plan, case.checkpoint)
    except TrainerError as error:
        assert error.status == (MISSING_KERNEL if decode_plan(plan)["version"] == VERSION else BAD_PLAN)
        return
    assert decode_plan(plan)["version"] == VERSION
    session.learning_rate = 0.01
    for step, wanted in enumerate(losses(folder)):
        session.lazy_reset_grad()
        assert np.allclose(session.run(TRAIN, case.batch(step))[0], wanted, rtol=1e-5)
        session.optimizer_step()
