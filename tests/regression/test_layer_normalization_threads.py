"""With threads, the gradients of a layer normalization's scale and bias were sums of what the gradient of its input had
just overwritten in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from case_sets import TRAIN, load, trainer
from packed_model import packed_set

from minbuild.training.library import Session


def test_threads_sum_gradients_of_scales_before_they_overwrite_what_these_are_made_of(tmp_path: Path) -> None:
    case = load(packed_set(tmp_path))
    built, found = trainer(case.folder, threads=4), []
    for threads in (1, 3):
        session = Session(built.library, built.data, case.checkpoint, threads=threads)
        session.run(TRAIN, case.batch(0))
        found.append([np.array(session.gradient(name)) for name in ("norm2.weight", "norm2.bias")])
    assert all(np.array_equal(one, other) and one.any() for one, other in zip(*found, strict=True))
