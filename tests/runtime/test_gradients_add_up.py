"""Gradients of several steps add up until they are reset, whichever kernels compute them, and afterwards the next ones
replace them, whatever the memory holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from case_sets import TRAIN, load, trainer
from packed_model import MODELS, packed_set

from minbuild.training.library import Session

# Of the largest gradient of a parameter, as sums are added in another order, and of the largest of all: biases before a
# normalization have none but that of rounding.
ROUNDING, UNIT = 1e-5, 2.0**-24


def gradients(session: Session, trained: list[str]) -> dict[str, np.ndarray]:
    return {name: session.gradient(name).astype(np.float64) for name in trained}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_two_batches_add_up(name: str, threads: int, tmp_path: Path) -> None:
    case = load(packed_set(tmp_path, samples=5, name=name))
    session = trainer(case.folder, threads=threads).session(case.checkpoint)
    trained = [parameter for parameter in session.parameters if session.is_trained(parameter)]
    each = []
    for samples in (5, 3):
        session.run(TRAIN, case.samples(samples))
        each.append(gradients(session, trained))
        session.lazy_reset_grad()
    for samples in (5, 3):
        session.run(TRAIN, case.samples(samples))
    both = gradients(session, trained)
    session.lazy_reset_grad()
    session.run(TRAIN, case.samples(5))
    wrong, largest = [], max(np.abs(of_each).max() for of_each in both.values())
    for again, parameter in zip(gradients(session, trained).values(), trained, strict=True):
        wanted = each[0][parameter] + each[1][parameter]
        bound = ROUNDING * np.abs(wanted).max() + UNIT * largest
        if not (np.abs(both[parameter] - wanted) <= bound).all():  # nor NaN
            wrong.append(f"{parameter}: the sum of two batches")
        if not np.array_equal(again, each[0][parameter]):
            wrong.append(f"{parameter}: the batch after a reset")
    assert not wrong
