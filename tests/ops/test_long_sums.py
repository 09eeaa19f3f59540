"""Sums of millions of elements lose no more than those of a few."""

from __future__ import annotations

import numpy as np
import pytest
import trainers

from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((3_000_017,), (0,)), ((2, 500_009, 3), (1,)), ((3, 400_003), (-1,))]
)
def test_long_sums_stay_precise(tmp_path, op, shape, axes):
    known = registry()
    x = np.random.default_rng(4).uniform(0, 1, shape)
    wanted = known.ops[f":{op}"]
    case = TestCase("long", (x, np.array(axes)), {"keepdims": 0}, frozenset({1}))
    one = trainers.one_node(wanted, case)
    plan = trainers.plan_of(one.artifacts, known)
    library = trainers.library_of(trainers.contents_of([plan]), known, tmp_path)
    found = trainers.run(library, plan, one)
    for key, array in trainers.expected(wanted, case).items():
        assert not trainers.disagreement(found[key], array, 16)
