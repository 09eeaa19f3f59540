"""Random feed-forward nets: built trainers compute what the interpreter of their graphs does, in double precision."""

from __future__ import annotations

import pytest
import trainers
from planned_models import compiled, within
from random_nets import LARGEST, REGISTRY, compared, random_net

from minbuild.options.plan_options import PlanOptions
from minbuild.planning.kernel_selection import contents_of

# tests/slow/random_models.py builds as many as one likes; some have a plan in 0.6 of the RAM.
COUNT, FITTING = 40, (2, 3, 6, 8, 11, 12, 16, 19, 20, 22)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    made = [random_net(seed) for seed in range(COUNT)]
    models = [compiled(artifacts, REGISTRY, N=LARGEST) for artifacts, _ in made]
    library = trainers.library_of(contents_of(models), REGISTRY, tmp_path_factory.mktemp("nets"))
    return [(*each, model, library) for each, model in zip(made, models, strict=True)]


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_nets_compute_what_their_graphs_say(built, seed):
    compared(*built[seed], seed)


def test_random_nets_compute_it_within_a_budget_on_two_threads(tmp_path):
    made = [random_net(seed) for seed in FITTING]
    models = [within(0.6, a, REGISTRY, PlanOptions(threads="2"), N=LARGEST) for a, _ in made]
    library = trainers.library_of(contents_of(models), REGISTRY, tmp_path)
    for each, model in zip(made, models, strict=True):
        compared(*each, model, library)
