"""Random loops: built trainers compute what the interpreter of their graphs does, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import trainers
from loop_models import REGISTRY, artifacts, batch
from planned_models import compiled
from random_loops import compared, random_loops

from minbuild.planning.kernel_selection import contents_of
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import EVAL, Session

# tests/slow/random_models.py builds as many as one likes; in the last two loops read stacks of one.
SEEDS = (*range(40), 1923)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    made = [random_loops(seed) for seed in SEEDS]
    models = [compiled(a, REGISTRY, **({"T": 40} if rounds is None else {})) for a, rounds in made]
    library = trainers.library_of(contents_of(models), REGISTRY, tmp_path_factory.mktemp("loops"))
    return [(a, rounds, model, library) for (a, rounds), model in zip(made, models, strict=True)]


@pytest.mark.parametrize("number", range(len(SEEDS)), ids=map(str, SEEDS))
def test_random_loops_compute_what_their_graphs_say(built, number):
    compared(*built[number])


def test_a_state_that_the_round_reads_no_longer_stays_for_the_next(tmp_path):
    """The cells of a long short-term memory: evaluated, nothing reads them behind their tanh but the next round."""
    made = artifacts("cells")
    model = compiled(made, REGISTRY)
    library = trainers.library_of(contents_of([model]), REGISTRY, tmp_path)
    found = Session(library, model.plan_bytes, model.checkpoint, []).run(EVAL, batch())
    for one, other in zip(found, ReferenceTrainer(made).eval_step(*batch()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
