"""Built trainers beside the interpreter of their graphs, in double and in single precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minbuild.ir import ElementType, TrainingArtifacts
from minbuild.planning.compiled_model import CompiledModel
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import EVAL, TRAIN, Library, Session

Results = list[np.ndarray]


class Beside:
    """Trainers of `made`: interpreters, and its `model`, built into `library`, of free sizes up to `largest`."""

    def __init__(self, made: TrainingArtifacts, model: CompiledModel, library: Library, largest: int) -> None:
        sizes = [largest] * len(model.plan.symbols)
        self.session = Session(library, model.plan_bytes, model.checkpoint, sizes)
        self.exact, self.rounded = ReferenceTrainer(made), ReferenceTrainer(made, real=ElementType.FLOAT)

    def step(self, feeds: Sequence[np.ndarray]) -> tuple[Results, Results, Results]:
        """Outputs of an evaluation and of a training step on the same batch, and gradients, which then start anew: of
        the built trainer, of the interpreter, and of the interpreter in single precision."""
        names = self.exact.trained
        found = [*self.session.run(EVAL, feeds), *self.session.run(TRAIN, feeds)]
        found += [self.session.gradient(n) for n in names]
        with np.errstate(over="ignore", invalid="ignore"):
            wanted, single = (
                [*t.eval_step(*feeds), *t.train_step(*feeds), *(t.gradients[n] for n in names)]
                for t in (self.exact, self.rounded)
            )
        for trainer in (self.session, self.exact, self.rounded):
            trainer.lazy_reset_grad()
        return found, wanted, single


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, relative to the largest number of `other` where that is above 1."""
    return float(np.abs(one - other).max() / (1 + np.abs(other).max()))
