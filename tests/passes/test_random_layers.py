"""Random layers of the sizes of real networks: built trainers compute what the interpreter of their graphs does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trainers
from planned_models import compiled
from random_layers import REGISTRY, compared, random_layer

from minbuild.options.plan_options import PlanOptions
from minbuild.planning.kernel_selection import contents_of

# tests/slow/random_models.py builds as many as one likes, with vectors of every width.
COUNT = 30
LIBRARIES = {
    "one thread, AVX2": (PlanOptions(), False),
    "one thread, AVX-512": (PlanOptions(packs_all=True), True),
    "two threads, AVX-512": (PlanOptions(threads="2"), True),
}


@pytest.fixture(scope="module", params=LIBRARIES)
def built(request, tmp_path_factory):
    options, avx512 = LIBRARIES[request.param]
    made = [random_layer(seed) for seed in range(COUNT)]
    models = [compiled(artifacts, REGISTRY, options, **layer.largest) for artifacts, layer in made]
    contents = replace(contents_of(models), avx512=avx512)
    library = trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("layers"))
    return [(*each, model, library) for each, model in zip(made, models, strict=True)]


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_layers_compute_what_their_graphs_say(built, seed):
    compared(*built[seed], seed)
