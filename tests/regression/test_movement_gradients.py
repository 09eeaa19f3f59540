"""Gradients of operators that move elements, where ONNX Runtime 1.19.2 fails.

Its SliceGrad stops with a narrowing error when steps are negative, it has no gradient for Pad that is not constant,
and none for CumSum."""

from __future__ import annotations

import numpy as np
import pytest
import trainers
from gradients import backward_graph

from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase

REGISTRY = registry()


def differentiated(key: str, case: TestCase, tmp_path) -> list[str]:
    """What is wrong with the gradient of an operator at one case."""
    one, wanted = backward_graph(REGISTRY.ops[key], case, np.random.default_rng(1))
    plan = trainers.plan_of(one.artifacts, REGISTRY)
    library = trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path)
    return wanted.problems(trainers.run(library, plan, one), np.random.default_rng(2), 1e-7)


def test_slices_that_go_backwards_have_gradients(tmp_path):
    limits = tuple(np.array([n], np.int64) for n in (-1, -(2**63), 1, -1))
    x = np.random.default_rng(3).standard_normal((3, 5))
    case = TestCase("reversed", (x, *limits), constant=frozenset({1, 2, 3, 4}))
    assert not differentiated(":Slice", case, tmp_path)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_padding_that_repeats_elements_has_gradients(mode, tmp_path):
    x = np.random.default_rng(3).standard_normal((1, 2, 4, 5))
    pads = np.array([0, 0, 2, 1, 0, 0, 1, 3])
    case = TestCase(mode, (x, pads), {"mode": mode}, frozenset({1}))
    assert not differentiated(":Pad", case, tmp_path)


def test_running_sums_have_gradients(tmp_path):
    x = np.random.default_rng(3).standard_normal((3, 5))
    case = TestCase("sums", (x, np.array(1)), {"exclusive": 1}, frozenset({1}))
    assert not differentiated(":CumSum", case, tmp_path)
