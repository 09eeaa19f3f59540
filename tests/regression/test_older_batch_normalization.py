"""Training batch normalisation of opsets before 14 made running statistics as further results and the variance from its
inverse and back, at twice the memory and less precision than that of newer opsets."""

from __future__ import annotations

import pytest
from authored import differences, operators, source, trainer_of, uniform

from minbuild.authoring import Recipe, artifacts_of
from minbuild.ops import registry

pytestmark = pytest.mark.unit

TEXT = (
    "g (float[N,3,4] x) => (float[N,3,4] y)"
    "{ h, m, v, sm, sv = BatchNormalization (x, scale, bias, mean, variance) y = Tanh(h) }"
)
NEWER = "g (float[N,3,4] x) => (float[N,3,4] y) { h, m, v = BatchNormalization <training_mode = 1> " + (
    "(x, scale, bias, mean, variance) y = Tanh(h) }"
)


def model(opset: int):
    scale, bias, mean, variance = uniform((3,), (3,), (3,), (3,))
    weights = {"scale": scale, "bias": bias, "mean": mean, "variance": abs(variance)}
    return source(NEWER if opset >= 14 else TEXT, weights, opset)


@pytest.mark.parametrize("opset", [9, 13])
def test_it_trains_as_in_newer_opsets(opset):
    recipe = Recipe(loss="mse")
    older, newer = (operators(artifacts_of(model(v), recipe, registry())) for v in (opset, 14))
    assert "BatchNormInternal" in older and len(older) <= len(newer)


@pytest.mark.parametrize("opset", [9, 13])
def test_gradients_are_those_of_the_loss(opset):
    found = differences(trainer_of(model(opset), Recipe(loss="mse")), *uniform((5, 3, 4), (5, 3, 4)))
    assert set(found) == {"scale", "bias"} and max(found.values()) < 1e-5
