"""Batches that proofs and measurements run on."""

from __future__ import annotations

import numpy as np
import pytest

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import symbol
from minbuild.reference.synthetic_data import seeded_batch

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
