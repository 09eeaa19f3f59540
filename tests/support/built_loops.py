"""Trainers with loops, built and compared with the interpreter of their graphs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import trainers

from minbuild.ir import Plan, TrainingArtifacts
from minbuild.ops import Registry
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import TRAIN


def check_built(
    made: TrainingArtifacts,
    plan: Plan,
    registry: Registry,
    folder: Path,
    batches: Iterable[tuple[np.ndarray, ...]],
) -> None:
    """Losses and gradients of the built trainer are those of the interpreter, batch after batch in one session."""
    contents = replace(trainers.contents_of([plan]), loops=plan.loops)
    library = trainers.library_of(contents, registry, folder)
    parameters = {p.name: np.asarray(p.data) for p in made.checkpoint.parameters}
    session = trainers.session_of(library, plan, parameters)
    trainer = ReferenceTrainer(made)
    for number, feeds in enumerate(batches):
        trainer.lazy_reset_grad()
        for again in range(2):  # gradients that replace those before, and gradients that add up
            (loss,) = session.run(TRAIN, list(feeds))[:1]
            expected = trainer.train_step(*feeds)[0]
            np.testing.assert_allclose(
                np.ravel(loss), np.ravel(expected), rtol=1e-5, err_msg=f"batch {number}, {again}"
            )
            for each in trainer.trained:
                np.testing.assert_allclose(
                    session.gradient(each),
                    trainer.gradients[each],
                    rtol=1e-4,
                    atol=1e-5,
                    err_msg=f"{each}, batch {number}",
                )
        session.lazy_reset_grad()
