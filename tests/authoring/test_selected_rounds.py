"""Slices of Loops that end when data says so: as many as rounds ran, in room for all that the limit allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trainers
from authored import differences, source, stepped
from built_loops import check_built

from minbuild.authoring import Recipe, Source, artifacts_of
from minbuild.errors import Unsupported
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer

REGISTRY, MOST = registry(), 9
RECIPE = Recipe(loss="mse", optimizer="sgd")
BODY = """<body = round (int64 i, bool going, float[2,4] h) => (bool on, float[2,4] n, float[2,4] y) {
    a = MatMul (h, R) n = Tanh (a) y = Mul (n, B)
    size = ReduceSumSquare <keepdims = 0> (n)
    on = Greater (size, limit)
}>"""
# What becomes of the slices, and the same of an array of those that ran and the last state.
READERS = {
    "mean": ("out = ReduceMean <axes = [0], keepdims = 0> (all)", lambda ys, h: ys.mean(0)),
    "log of squares": (
        "q = Mul (all, all) g = Log (q) s = ReduceSum <keepdims = 0> (g, first) out = Add (s, last)",
        lambda ys, h: np.log(ys * ys).sum(0) + h,
    ),
    "largest": (
        "p = Exp (all) out = ReduceMax <axes = [0], keepdims = 0> (p)",
        lambda ys, h: np.exp(ys).max(0),
    ),
    "the last two": (
        "t = Gather <axis = 0> (all, two) out = ReduceSum <keepdims = 0> (t, first)",
        lambda ys, h: ys[-1] + ys[0],
    ),
    "number": (
        "s = Shape (all) c = Gather (s, nought) f = Cast <to = 1> (c) m = Mul (last, f) "
        "t = ReduceSum <keepdims = 0> (all, first) out = Add (m, t)",
        lambda ys, h: h * len(ys) + ys.sum(0),
    ),
}


def model(reader: str) -> Source:
    """A loop of MOST rounds at most, whose slices go where `reader` says."""
    random = np.random.default_rng(0)
    values = {n: random.standard_normal(s).astype(np.float32) for n, s in (("W", (3, 4)), ("B", (4,)))}
    values |= {"R": (random.standard_normal((4, 4)) * 0.45).astype(np.float32)}
    values |= {"most": np.array(MOST), "yes": np.array(True), "limit": np.array(0.3, np.float32)}
    values |= {"first": np.array([0]), "two": np.array([-1, 0]), "nought": np.array(0)}
    text = f"""m (float[2,3] x) => (float[2,4] out) {{
        start = MatMul (x, W)
        last, all = Loop (most, yes, start) {BODY}
        {READERS[reader][0] if reader in READERS else reader}
    }}"""
    return source(text, {n: a for n, a in values.items() if n in text})


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs with which the loop runs one round, some, and all of its limit."""
    random, scales = np.random.default_rng(4), (0.05, 1.0, 60.0)
    return [
        (
            (random.standard_normal((2, 3)) * scale).astype(np.float32),
            random.standard_normal((2, 4)).astype(np.float32),
        )
        for scale in scales
    ]


def rounds(model: Source, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The slices of the rounds that run, and the last state."""
    weights = {n: a.astype(np.float64) for n, a in model.graph.initializers.items() if n in "WRB"}
    h, made = x @ weights["W"], []
    for _ in range(MOST):
        h = np.tanh(h @ weights["R"])
        made.append(h * weights.get("B", 1))
        if not np.square(h).sum() > 0.3:
            break
    return np.array(made), h


@pytest.mark.parametrize("reader", READERS)
def test_slices_of_rounds_that_ran_are_read(reader: str, tmp_path: Path) -> None:
    found = model(reader)
    made = artifacts_of(found, RECIPE, REGISTRY)
    assert [n.op_type for n in made.training.nodes].count("Scan") == 2
    trainer, ran = ReferenceTrainer(made), set()
    for x, target in batches():
        ys, h = rounds(found, x)
        ran.add(len(ys))
        loss = stepped(trainer, x, target)
        np.testing.assert_allclose(loss, np.square(READERS[reader][1](ys, h) - target).mean(), rtol=1e-6)
        assert max(differences(ReferenceTrainer(made), x, target).values()) < 1e-5
    assert min(ran) == 1 and max(ran) > 4
    plan = trainers.plan_of(made, REGISTRY)
    assert plan.loops == 3
    check_built(made, plan, REGISTRY, tmp_path, batches())


def test_slices_that_would_be_results_are_refused_by_name() -> None:
    with pytest.raises(Unsupported) as caught:
        artifacts_of(
            model("c = Concat <axis = 0> (all, all) out = ReduceMean <keepdims = 0> (c)"), RECIPE, REGISTRY
        )
    assert any("cannot read that" in finding for finding in caught.value.findings), caught.value.findings
