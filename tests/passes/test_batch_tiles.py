"""Means over all positions of images in loops over the batch: the memory of a global average pool, the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import quantized_models
import trainers
from authored import source
from planned_models import compiled, peak

from minbuild.authoring import Recipe, artifacts_of
from minbuild.ops import registry
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of

OPERATORS = registry()
BATCH, SIZE = 8, 20
MEAN = "axes = Constant<value_ints = [2, 3]>() p = ReduceMean(r, axes)"


def net(pool: str = MEAN) -> CompiledModel:
    """A frozen convolution and `pool`, which makes p of r, before a head that trains."""
    text = f"""
    net (float[batch, 1, {SIZE}, {SIZE}] x) => (float[batch, 3] scores) {{
        c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, k)
        r = Relu(c) {pool} f = Flatten(p) scores = MatMul(f, w)
    }}"""
    random = np.random.default_rng(4)
    width = SIZE * SIZE if "[1]" in pool else 8
    weights = {
        "k": random.standard_normal((8, 1, 3, 3)).astype(np.float32),
        "w": random.standard_normal((width, 3)).astype(np.float32),
    }
    made = artifacts_of(source(text, weights, 18), Recipe(loss="cross-entropy", train=("w",)), OPERATORS)
    return compiled(made, OPERATORS, batch=BATCH)


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> CompiledModel:
    """The net whose means take the whole batch."""
    mean = replace(OPERATORS.ops[":ReduceMean"], batched_inputs=None)
    with monkeypatch.context() as patch:
        patch.setitem(OPERATORS.ops, mean.key, mean)
        return net()


def test_a_mean_over_positions_takes_the_memory_of_a_pool(whole: CompiledModel) -> None:
    assert peak(net()) == peak(net("p = GlobalAveragePool(r)"))
    assert peak(net()) * 2 < peak(whole)


def test_the_bits_stay(whole: CompiledModel, tmp_path: Path) -> None:
    models = (net(), whole)
    library = trainers.library_of(contents_of(models), OPERATORS, tmp_path)
    data = quantized_models.batches((BATCH, 1, SIZE, SIZE), 3, 3)
    first, second = (
        quantized_models.trained(quantized_models.session(model, library, BATCH), data) for model in models
    )
    assert first == second
    assert len(set(np.frombuffer(first["losses"], np.float32).tolist())) == len(data)


def test_means_over_channels_stay_outside() -> None:
    steps = net(MEAN.replace("[2, 3]", "[1]")).plan.routines[0].steps
    assert not any(step.loop for step in steps)
