"""Activations that are computed again behind the range of their batch: the same bits, a fraction of the memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import quantized_models
import trainers
from authored import source
from planned_models import compiled, peak

from minbuild.authoring import Recipe, artifacts_of
from minbuild.ops import registry
from minbuild.passes import manager
from minbuild.passes.rewrite import recompute_ranges
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of

OPERATORS = registry()
BATCH, SIZE = 8, 40
LAYER = """
    {x}q, {x}s, {x}z = DynamicQuantizeLinear({x})
    {y}i = ConvInteger<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>({x}q, {y}w, {x}z)
    {y}f = Cast<to = 1>({y}i)
    {y}m = Mul({x}s, {y}k)
    {y}a = Mul({y}f, {y}m)
    {y} = Relu({y}a)
"""


def net(between: str = "") -> CompiledModel:
    """Two convolutions of quantized activations before a head that trains; `between` comes behind the first."""
    first, second = LAYER.format(x="x", y="a"), LAYER.format(x="b" if between else "a", y="c")
    text = (
        f"net (float[batch, 1, {SIZE}, {SIZE}] x) => (float[batch, 3] scores) {{ {first} {between} {second}"
    )
    text += " p = GlobalAveragePool(c) f = Flatten(p) scores = MatMul(f, w) }"
    random = np.random.default_rng(4)
    weights = {
        "aw": random.integers(0, 255, (8, 1, 3, 3)).astype(np.uint8),
        "cw": random.integers(0, 255, (8, 8, 3, 3)).astype(np.uint8),
        "ak": np.float32(1e-3).reshape(()),
        "ck": np.float32(1e-4).reshape(()),
        "w": random.standard_normal((8, 3)).astype(np.float32),
    }
    made = artifacts_of(source(text, weights), Recipe(loss="cross-entropy", train=("w",)), OPERATORS)
    return compiled(made, OPERATORS, batch=BATCH)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch):
    """A call that compiles a model by the other passes."""

    def made(between: str = "") -> CompiledModel:
        others = tuple(p for p in manager.PASSES if p.name != recompute_ranges.recompute_ranges.__name__)
        with monkeypatch.context() as patch:
            patch.setattr(manager, "PASSES", others)
            return net(between)

    return made


@pytest.mark.parametrize(
    "between", ["", "shape = Constant<value_ints = [0, 8, -1, 20]>() b = Reshape(a, shape)"]
)
def test_bits_stay_and_memory_shrinks(between: str, without, tmp_path: Path) -> None:
    again, whole = net(between), without(between)
    assert peak(again) * 2 <= peak(whole)
    library = trainers.library_of(contents_of([again, whole]), OPERATORS, tmp_path)
    data = quantized_models.batches((BATCH, 1, SIZE, SIZE), 3, 3)
    first, second = (
        quantized_models.trained(quantized_models.session(model, library, BATCH), data)
        for model in (again, whole)
    )
    assert first == second
    assert np.isfinite(np.frombuffer(first["losses"], np.float32)).all()
    assert len(set(np.frombuffer(first["losses"], np.float32).tolist())) == len(data)


def test_time_limits_what_is_computed_again(without, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute_ranges, "MOST_TIME", 1)
    assert peak(net()) == peak(without())


def test_little_gain_leaves_the_plan(without, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute_ranges, "LEAST_GAIN", 1000)
    assert net().plan_bytes == without().plan_bytes
