"""Built trainers beside the interpreter of their graphs, in double and in single precision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import trainers
from planned_models import compiled

from minbuild.ir import ElementType, TrainingArtifacts
from minbuild.ops import registry
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
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


def farthest(
    made: Mapping[str, TrainingArtifacts], batches: Mapping[str, Iterable[Sequence[np.ndarray]]], folder: Path
) -> dict[str, float]:
    """By name, the largest `distance` between built trainers of `made`, which have no free sizes, and the interpreter
    in double precision, over outputs and gradients of `batches`. One library, built into `folder`, runs all."""
    models = {name: compiled(each, registry()) for name, each in made.items()}
    library = trainers.library_of(contents_of(list(models.values())), registry(), folder)
    found = dict.fromkeys(made, 0.0)
    for name, each in made.items():
        beside = Beside(each, models[name], library, 1)
        for feeds in batches[name]:
            ran, wanted, _ = beside.step(feeds)
            distances = [distance(one, other) for one, other in zip(ran, wanted, strict=True)]
            found[name] = float(np.max([found[name], *distances]))  # NaN if one is
    return found
