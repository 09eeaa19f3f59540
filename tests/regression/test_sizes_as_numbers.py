"""Models that compute with a free size, such as a loss that divides by the batch size, were refused when the trainer
was built."""

from __future__ import annotations

import numpy as np
import pytest
import trainers
from authored import source, uniform

from minbuild.authoring import Recipe, artifacts_of
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import TRAIN

REGISTRY = registry()
# What the sum of squares is divided by.
DIVISORS = {
    "batch": "s = Shape(h) n = Gather(s, zero) d = Cast <to = 1> (n)",
    "elements": "n = Size(h) d = Cast <to = 1> (n)",
    "all but one": "s = Shape(h) n = Gather(s, zero) m = Mul(n, two) k = Sub(m, one) d = Cast <to = 1> (k)",
    "every size": "s = Shape(h) f = Cast <to = 1> (s) d = ReduceMean <keepdims = 0> (f)",
    "twice": "s = Shape(h) n = Gather(s, zero) f = Cast <to = 1> (n) g = Cast <to = 1> (n) d = Mul(f, g)",
}


def artifacts(divisor: str):
    text = (
        "g (float[N,4] x) => (float y) <int64 zero = {0}, int64 one = {1}, int64 two = {2}>"
        f"{{ h = MatMul(x, w) q = Mul(h, h) t = ReduceSum <keepdims = 0> (q) {DIVISORS[divisor]} y = Div(t, d) }}"
    )
    return artifacts_of(source(text, {"w": uniform((4, 3))[0]}), Recipe(), REGISTRY)


@pytest.mark.parametrize("divisor", DIVISORS)
def test_the_device_computes_with_sizes(divisor, tmp_path):
    made = artifacts(divisor)
    plan = trainers.plan_of(made, REGISTRY)
    library = trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path)
    weight = made.checkpoint.parameters[0]
    for batch in (1, 5):
        x = uniform((batch, 4))[0]
        session = trainers.session_of(library, plan, {weight.name: weight.data})
        found = float(np.ravel(session.run(TRAIN, [x])[0])[0])
        wanted = float(np.ravel(ReferenceTrainer(made).train_step(x)[0])[0])
        assert found == pytest.approx(wanted, rel=1e-6)
