"""Random feed-forward nets: built trainers compute what the interpreter of their graphs does, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import trainers
from beside_interpreter import Beside, distance
from planned_models import compiled
from random_nets import CLASSES, REGISTRY, random_net

from minbuild.planning.kernel_selection import contents_of

COUNT, LARGEST, NEAR = 40, 6, 3e-5


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    made = [random_net(seed) for seed in range(COUNT)]
    models = [compiled(artifacts, REGISTRY, N=LARGEST) for artifacts, _ in made]
    library = trainers.library_of(contents_of(models), REGISTRY, tmp_path_factory.mktemp("nets"))
    return [(*each, model, library) for each, model in zip(made, models, strict=True)]


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_nets_compute_what_their_graphs_say(built, seed):
    made, shape, model, library = built[seed]
    random, beside = np.random.default_rng(seed), Beside(made, model, library, LARGEST)
    for count in (LARGEST, 3, 1):
        feeds = [random.standard_normal((count, *s)).astype(np.float32) for s in (shape, (CLASSES,))]
        for one, other, by_floats in zip(*beside.step(feeds), strict=True):
            assert distance(one, other) < NEAR + 8 * distance(by_floats, other)
