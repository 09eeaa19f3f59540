"""Loss scaling: what underflows in half precision trains as in float, and steps that overflow change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from authored import source

from minbuild.authoring import Recipe, make_artifacts, write_artifacts
from minbuild.authoring.optimizers import OptimizerOptions
from minbuild.authoring.recipe import LossScale
from minbuild.cli.training_options import parse_loss_scale
from minbuild.errors import BadInput
from minbuild.frontend.artifacts import load_artifacts
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.api import CheckpointState, Module, Optimizer

# Products in half precision, as mixed-precision exporters write them. Outputs are small: gradients of what is before
# them are about 1e-10, and the smallest number above 0 in float16 is 6e-8.
NET = """m (float[n,8] x) => (float[n,4] y) {{
    xh = Cast <to={0}> (x) ah = Cast <to={0}> (a) bh = Cast <to={0}> (b)
    p = MatMul (xh, ah) h = Tanh (p) q = MatMul (h, bh) z = Cast <to=1> (q) y = Mul (z, unit) }}"""
FLOAT, FLOAT16 = 1, 10
RANDOM = np.random.default_rng(1)
WEIGHTS = {
    "a": (RANDOM.standard_normal((8, 16)) * 0.4).astype(np.float32),
    "b": (RANDOM.standard_normal((16, 4)) * 0.4).astype(np.float32),
    "unit": np.float32(1e-4),
}
X = RANDOM.standard_normal((32, 8)).astype(np.float32)
T = (np.tanh(X @ RANDOM.standard_normal((8, 4))) * 1e-4).astype(np.float32)
STEPS = 40


@dataclass
class Trainer:
    folder: Path
    state: CheckpointState
    module: Module
    optimizer: Optimizer

    def step(self, x: np.ndarray = X) -> float:
        loss = float(self.module(x, T))
        self.optimizer.step()
        self.module.lazy_reset_grad()
        return loss

    @property
    def session(self):
        return self.module._device.session

    @property
    def scale(self) -> tuple[float, float]:
        """Of a dynamic scale: what it is, and the updates since it changed."""
        return tuple(float(self.session.parameter(f"loss_scale{n}")[0]) for n in ("", ".good_steps"))

    def bits(self) -> bytes:
        return self.session.checkpoint(True)


def recipe(scale: LossScale | None) -> Recipe:
    return Recipe(
        loss="mse", optimizer_options=OptimizerOptions(epsilon=1e-14), train=("a", "b"), loss_scale=scale
    )


def opened(folder: Path, checkpoint: str = "checkpoint") -> Trainer:
    state = CheckpointState.load_checkpoint(folder / checkpoint)
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.02)
    return Trainer(folder, state, module, optimizer)


def trainer(folder: Path, kind: int, scale: LossScale | None, unit: float = 1e-4) -> Trainer:
    weights = {**WEIGHTS, "unit": np.float32(unit)}
    write_artifacts(make_artifacts(source(NET.format(kind), weights), recipe(scale)), folder)
    return opened(folder)


def test_what_underflows_trains_with_a_scale_as_in_float(tmp_path):
    runs = {
        name: trainer(tmp_path / name, kind, scale)
        for name, kind, scale in (
            ("float", FLOAT, None),
            ("half", FLOAT16, None),
            ("static", FLOAT16, LossScale(2.0**24)),
            ("dynamic", FLOAT16, LossScale(2.0**20, growth_interval=10)),
        )
    }
    losses = {name: np.array([run.step() for _ in range(STEPS)]) for name, run in runs.items()}
    wanted = losses["float"]
    assert wanted[-1] < 0.4 * wanted[0]
    assert losses["half"][-1] > 0.9 * losses["half"][0]  # all gradients are 0, or nearly all
    for name in ("static", "dynamic"):
        assert np.abs(losses[name] / wanted - 1).max() < 0.01  # of 2^-11, over 40 steps
    assert runs["dynamic"].session.step_count == STEPS and runs["dynamic"].scale[0] == 2.0**24


def test_a_scale_changes_no_bit_where_nothing_is_rounded(tmp_path):
    plain, scaled = (
        trainer(tmp_path / str(i), FLOAT, scale) for i, scale in enumerate((None, LossScale(1024.0)))
    )
    assert [plain.step() for _ in range(3)] == [scaled.step() for _ in range(3)]
    for name in ("a", "b"):
        assert (plain.session.parameter(name) == scaled.session.parameter(name)).all()


def test_steps_that_overflow_halve_the_scale_and_update_nothing(tmp_path):
    run = trainer(tmp_path, FLOAT16, LossScale(2.0**24, growth_interval=3), unit=1.0)
    start = {n: run.session.parameter(n).copy() for n in ("a", "b")}
    skipped = 0
    while run.session.step_count == 0:
        run.step()
        skipped += run.session.step_count == 0
        if run.session.step_count == 0:
            assert all((run.session.parameter(n) == v).all() for n, v in start.items())
            assert run.scale == (2.0 ** (24 - skipped), 0)
    assert 0 < skipped < 12 and run.scale == (2.0 ** (24 - skipped), 1)
    run.step()
    run.step()
    assert run.scale == (2.0 ** (25 - skipped), 0)  # after three updates


def test_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    run = trainer(tmp_path, FLOAT16, LossScale(2.0**24, growth_interval=4), unit=1.0)
    for _ in range(7):
        run.step()
    CheckpointState.save_checkpoint(run.state, tmp_path / "half_way", include_optimizer_state=True)
    resumed = opened(tmp_path, "half_way")
    assert resumed.scale == run.scale
    assert [run.step() for _ in range(9)] == [resumed.step() for _ in range(9)]
    assert run.bits() == resumed.bits()


def test_the_reference_skips_the_same_steps(tmp_path):
    run = trainer(tmp_path, FLOAT16, LossScale(growth_interval=2))
    reference = ReferenceTrainer(load_artifacts(tmp_path))
    for x in (X, X, X * np.inf, X):
        run.step(x)
        reference.lazy_reset_grad()
        with np.errstate(invalid="ignore"):
            reference.train_step(x, T)
        reference.optimizer_step()
        found = tuple(float(reference.parameters[f"loss_scale{n}"][0]) for n in ("", ".good_steps"))
        assert (found, reference.step_count) == (run.scale, run.session.step_count)
    assert run.scale == (32768, 1)


@pytest.mark.parametrize(
    ("scale", "text"),
    [
        (LossScale(1000.0), "power of two"),
        (LossScale(float("inf")), "power of two"),
        (LossScale(2.0**30), "power of two"),
    ],
)
def test_other_scales_are_refused(scale, text):
    with pytest.raises(BadInput, match=text):
        make_artifacts(source(NET.format(FLOAT), WEIGHTS), recipe(scale))


def test_what_has_no_optimizer_or_names_of_its_own_has_no_dynamic_scale():
    own = Recipe(loss="mse", optimizer="none", loss_scale=LossScale(growth_interval=2))
    with pytest.raises(BadInput, match="there is none. Give a number"):
        make_artifacts(source(NET.format(FLOAT), WEIGHTS), own)
    taken = source(
        "m (float[n,4] x) => (float[n,4] y) { y = Mul (x, loss_scale) }", {"loss_scale": np.ones(4, "f")}
    )
    with pytest.raises(BadInput, match="a value 'loss_scale' of its own"):
        make_artifacts(taken, Recipe(loss="mse", loss_scale=LossScale(growth_interval=2)))
    half = source("m (float16[n,4] x) => (float16[n,4] y) { y = Mul (x, w) }", {"w": np.ones(4, np.float16)})
    with pytest.raises(BadInput, match="largest number is 65,504"):
        make_artifacts(half, Recipe(loss="mse", loss_scale=LossScale(65536.0)))


def test_options_are_read():
    assert parse_loss_scale("1024", None) == LossScale(1024.0)
    assert parse_loss_scale("dynamic", 7) == LossScale(32768.0, 7)
    assert parse_loss_scale(None, None) is None
    for text, interval, found in (
        ("x", None, "power of two"),
        (None, 3, "without"),
        ("dynamic", 0, "1 or more"),
    ):
        with pytest.raises(BadInput, match=found):
            parse_loss_scale(text, interval)
