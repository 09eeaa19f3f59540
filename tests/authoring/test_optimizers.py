"""Optimizers over all parameters: torch's numbers, the interpreter's meaning, and trainers that run them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trainers
from case_sets import GOLDEN, TRAIN, load

from minbuild.authoring.optimizers import OPTIMIZERS, OptimizerOptions, optimizer_graph
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer

REGISTRY = registry()
START = [0.5, -1.25, 2.0]
GRADIENTS = [[0.25, -0.5, 1.0], [-0.125, 0.75, 0.5], [1.5, 0.0, -0.25]]
RATE = 0.125

# Parameters after three steps of torch 2.13's optimizers in float64.
RECORDED: dict[str, tuple[str, dict[str, Any], list[float]]] = {
    "Adam": (
        "minbuild:AdamOptimizer",
        {"alpha": 0.75, "beta": 0.875, "epsilon": 1e-3, "weight_decay": 0.25},
        [0.210031571643, -1.071622447724, 1.65896591936],
    ),
    "Adam by default": ("minbuild:AdamOptimizer", {}, [0.258494863395, -1.179897006295, 1.68801987687]),
    "AdamW": (
        "com.microsoft:AdamWOptimizer",
        {"weight_decay": 0.25},
        [0.221800256745, -1.073056313027, 1.517649972993],
    ),
    "SGD with momentum": (
        "minbuild:MomentumOptimizer",
        {"momentum": 0.75, "weight_decay": 0.25},
        [0.193557739258, -1.081077575684, 1.340637207031],
    ),
    "SGD with Nesterov's momentum": (
        "minbuild:MomentumOptimizer",
        {"momentum": 0.75, "nesterov": 1},
        [0.12255859375, -1.2958984375, 1.568359375],
    ),
    "Adagrad": (
        "minbuild:AdagradOptimizer",
        {"epsilon": 1e-3, "weight_decay": 0.25},
        [0.264066585675, -1.149867374772, 1.79327332465],
    ),
    "RMSprop": (
        "minbuild:RMSPropOptimizer",
        {"alpha": 0.75, "epsilon": 1e-3, "weight_decay": 0.25},
        [0.052389249655, -1.055871255209, 1.577185838924],
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_reference_is_torchs_optimizer(name):
    key, attributes, wanted = RECORDED[name]
    op = REGISTRY.ops[key]
    assert op.reference is not None
    steps, moments = (1, 2) if len(op.mutates) == 3 else (0, 1)
    p, state = np.array(START), [np.zeros(3) for _ in range(moments)]
    for step, gradient in enumerate(GRADIENTS, 1):
        count = [np.array([step])] * steps
        _, p, *state = op.reference(attributes, np.array([RATE]), *count, p, np.array(gradient), *state)
    np.testing.assert_allclose(p, wanted, rtol=1e-6)  # betas are float32 numbers


OPTIONS = {
    "adamw": OptimizerOptions(weight_decay=0.25),
    "adam": OptimizerOptions(betas=(0.75, 0.875), weight_decay=0.25),
    "sgd": OptimizerOptions(max_norm=0.5),
    "momentum": OptimizerOptions(nesterov=True, weight_decay=0.25, max_norm=0.5),
    "adagrad": OptimizerOptions(weight_decay=0.25),
    "rmsprop": OptimizerOptions(alpha=0.75, epsilon=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trainer_follows_the_interpreter(name, tmp_path):
    """Trimmed builds of each optimizer, three steps; then the moments that a checkpoint holds."""
    case = load(GOLDEN / "dense")
    artifacts = replace(case.artifacts, optimizer=optimizer_graph(name, OPTIONS[name]))
    plan = trainers.plan_of(artifacts, REGISTRY)
    library = trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path)
    state = {p.name: p.data for p in case.artifacts.checkpoint.parameters}
    session, exact = trainers.session_of(library, plan, state), ReferenceTrainer(artifacts)
    session.learning_rate = exact.learning_rate = 0.0625
    for step in range(3):
        batch = case.batch(step)
        found, wanted = session.run(TRAIN, batch), exact.train_step(*batch)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
        for go in (session.optimizer_step, session.lazy_reset_grad):
            go()
        for go in (exact.optimizer_step, exact.lazy_reset_grad):
            go()
    for parameter, wanted in exact.parameters.items():
        np.testing.assert_allclose(session.parameter(parameter), wanted, rtol=1e-4, atol=1e-5)
    (group,) = read_checkpoint(session.checkpoint(True)).groups
    assert group.step == 3
    for parameter, moments in group.moments.items():
        assert len(moments) == OPTIMIZERS[name].moments
        for i in range(len(moments) if name != "sgd" else 0):  # whose moment is never written
            wanted = exact.moments[parameter][i]
            np.testing.assert_allclose(moments[f"momentum{i}"], wanted, rtol=1e-4, atol=1e-6)
