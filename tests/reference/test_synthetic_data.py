"""Batches that proofs and measurements run on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from authored import source

from minbuild.authoring import Recipe, make_artifacts, write_artifacts
from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import symbol
from minbuild.planning.compile import compile_model
from minbuild.reference.synthetic_data import seeded_batch, smallest_sizes

pytestmark = pytest.mark.unit


def test_numbers_by_themselves_are_positive_and_others_of_both_signs() -> None:
    """Rates and corrections of moments are under roots: negative ones would make every parameter NaN."""
    inputs = {
        "rate": TensorType(ElementType.FLOAT, ()),
        "x": TensorType(ElementType.FLOAT, (symbol("n"), 8)),
        "one": TensorType(ElementType.FLOAT, (1,)),
    }
    batches = [seeded_batch(inputs, {}, {"n": 4}, seed, scale=0.5) for seed in range(20)]
    assert all(batch["rate"] > 0 and batch["rate"].shape == () for batch in batches)
    assert len({float(batch["rate"]) for batch in batches}) == 20
    assert {float(np.sign(batch["one"][0])) for batch in batches} == {-1.0, 1.0}
    assert batches[0]["x"].min() < 0 < batches[0]["x"].max()


def test_integers_that_are_no_indices_begin_at_the_lowest() -> None:
    """Lengths of sequences must not be 0 where a softmax of nothing but -infinity follows; indices keep their range."""
    inputs = {
        "lengths": TensorType(ElementType.INT64, (64,)),
        "flags": TensorType(ElementType.BOOL, (64,)),
        "tokens": TensorType(ElementType.INT64, (64,)),
    }
    zero, one = (seeded_batch(inputs, {"tokens": 5}, {}, 0, lowest=lowest) for lowest in (0, 1))
    assert set(zero["lengths"]) == {0, 1} and set(one["lengths"]) == {1, 2}
    assert set(zero["flags"]) == {False, True} and set(one["flags"]) == {True}
    assert set(one["tokens"]) == set(range(5))


@pytest.mark.parametrize(("before", "behind", "size"), [(0, 1, 3), (2, 0, 4), (1, 5, 8), (17, 0, 32)])
def test_sizes_reach_the_elements_that_a_reflecting_pad_reads(
    before: int, behind: int, size: int, tmp_path: Path
) -> None:
    """Both the size and one less, which proofs take as well."""
    model = source(
        'g (float[n, m] x) => (float[n, k] y) { s = Mul(x, w) y = Pad<mode = "reflect">(s, pads) }',
        {"w": np.float32([0.5]), "pads": np.array([0, before, 0, behind])},
    )
    write_artifacts(make_artifacts(model, Recipe(loss="mse")), tmp_path)
    assert smallest_sizes(compile_model(tmp_path, {}, {}).program) == size
