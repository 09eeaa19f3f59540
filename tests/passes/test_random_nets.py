"""Random feed-forward nets: built trainers compute what the interpreter of their graphs does, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import trainers
from planned_models import compiled
from random_nets import CLASSES, REGISTRY, random_net

from minbuild.ir import ElementType
from minbuild.planning.kernel_selection import contents_of
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import EVAL, TRAIN, Session

COUNT, LARGEST, NEAR = 40, 6, 3e-5


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    made = [random_net(seed) for seed in range(COUNT)]
    models = [compiled(artifacts, REGISTRY, N=LARGEST) for artifacts, _ in made]
    library = trainers.library_of(contents_of(models), REGISTRY, tmp_path_factory.mktemp("nets"))
    return [(*each, model, library) for each, model in zip(made, models, strict=True)]


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max() / (1 + np.abs(other).max()))


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_nets_compute_what_their_graphs_say(built, seed):
    made, shape, model, library = built[seed]
    random = np.random.default_rng(seed)
    session = Session(library, model.plan_bytes, model.checkpoint, [LARGEST] * len(model.plan.symbols))
    exact, rounded = ReferenceTrainer(made), ReferenceTrainer(made, real=ElementType.FLOAT)
    for count in (LARGEST, 3, 1):
        feeds = [random.standard_normal((count, *s)).astype(np.float32) for s in (shape, (CLASSES,))]
        found = [*session.run(EVAL, feeds), *session.run(TRAIN, feeds)]
        found += [session.gradient(n) for n in exact.trained]
        wanted, single = (
            [*t.eval_step(*feeds), *t.train_step(*feeds), *(t.gradients[n] for n in t.trained)]
            for t in (exact, rounded)
        )
        for one, other, by_floats in zip(found, wanted, single, strict=True):
            assert distance(one, other) < NEAR + 8 * distance(by_floats, other)
        for trainer in (session, exact, rounded):
            trainer.lazy_reset_grad()
