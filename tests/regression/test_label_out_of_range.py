"""ONNX Runtime reads beyond the scores for a label that is no class, and trains on with what it finds there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import trainers

from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase
from minbuild.training.library import TrainerError

OPERATORS = registry()
SCORES = np.random.default_rng(5).standard_normal((3, 4)).astype(np.float32)
LOSSES = (
    ":SoftmaxCrossEntropyLoss",
    ":NegativeLogLikelihoodLoss",
    ":SparseSoftmaxCrossEntropy",
    "com.microsoft:SoftmaxCrossEntropyLossInternal",
)
Loss = Callable[[np.ndarray], np.ndarray]


def loss_of(key: str, folder, **attributes: int) -> Loss:
    """The loss of three labels, as a trimmed trainer computes it."""
    one = trainers.one_node(
        OPERATORS.ops[key], TestCase(key, (SCORES, np.zeros(3, np.int64)), attributes), np.float32
    )
    plan = trainers.plan_of(one.artifacts, OPERATORS)
    library = trainers.library_of(trainers.contents_of([plan]), OPERATORS, folder)
    session = trainers.session_of(library, plan, {})
    return lambda labels: session.run(0, (SCORES, labels))[0]


@pytest.mark.parametrize("key", LOSSES)
def test_a_label_that_is_no_class_is_refused(key, tmp_path):
    loss = loss_of(key, tmp_path)
    for label in (4, -1, 2**31, -(2**62)):
        with pytest.raises(TrainerError, match="(nll_loss|softmax_cross_entropy)<.*>: value out of range"):
            loss(np.array([0, label, 3]))
    assert np.isfinite(loss(np.array([0, 1, 3])))


def test_a_label_that_is_ignored_may_be_anything(tmp_path):
    loss = loss_of(LOSSES[0], tmp_path, ignore_index=-100)
    each = SCORES - np.log(np.exp(SCORES).sum(1, keepdims=True))
    np.testing.assert_allclose(loss(np.array([0, -100, 3])), -(each[0, 0] + each[2, 3]) / 2, rtol=1e-5)
