"""NaN and infinity do not reach the parameters, and denormals cost no time."""

from __future__ import annotations

import platform
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from authored import source, uniform
from case_sets import GOLDEN, TRAIN, Trainer, load, loaded, persistent, trainer
from shared_library import shared_library

from minbuild.authoring import Recipe, make_artifacts, write_artifacts
from minbuild.codegen.sources import emit_sources
from minbuild.ops import registry
from minbuild.planning.library_contents import FINITE, FLUSH
from minbuild.training.library import Session, TrainerError

NAMES = ("dense", "conv", "residual", "transfer", "embedding")
OPTIMIZE_REFUSED = 7  # MB_BAD_VALUE


def without(built: Trainer, name: str) -> Trainer:
    """The trainer built without one of its safe defaults."""
    bare = replace(built.contents, safety=built.contents.safety - {name})
    library = shared_library(emit_sources(bare, registry()))
    return replace(built, library=loaded(library)[1])


def trained(name: str) -> tuple[Session, Trainer]:
    case, built = load(GOLDEN / name), trainer(GOLDEN / name)
    session = built.session(case.checkpoint)
    session.run(TRAIN, case.batch(0))
    return session, built


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_an_update_by_a_gradient_that_is_not_finite_is_refused(name, value):
    session, built = trained(name)
    for parameter in (n for n, p in session.parameters.items() if p.gradient):
        gradient = session.gradient(parameter).reshape(-1)
        for at in {0, gradient.size - 1}:
            kept, gradient[at] = gradient[at], value
            before = persistent(session, built)
            with pytest.raises(TrainerError, match=f"not finite: {parameter}$") as error:
                session.optimizer_step()
            assert error.value.status == OPTIMIZE_REFUSED
            assert persistent(session, built) == before
            gradient[at] = kept
    session.optimizer_step()
    assert session.step_count == 1


@pytest.mark.parametrize("rate", [np.nan, np.inf, -np.inf])
def test_a_learning_rate_that_is_not_finite_is_refused(rate):
    session, built = trained("dense")
    with pytest.raises(TrainerError, match="bad value: not finite: learning rate"):
        session.learning_rate = rate
    assert session.learning_rate == np.float32(0.001)
    session._session.contents.progress.contents.learning_rate = rate  # as a program may write it
    before = persistent(session, built)
    with pytest.raises(TrainerError, match="not finite: learning rate"):
        session.optimizer_step()
    assert persistent(session, built) == before
    session.learning_rate = np.finfo(np.float32).max
    session.optimizer_step()


def test_the_largest_and_smallest_gradients_are_taken():
    session, _ = trained("dense")
    parameter = next(n for n, p in session.parameters.items() if p.gradient)
    gradient = session.gradient(parameter).reshape(-1)
    gradient[:3] = np.finfo(np.float32).max, np.finfo(np.float32).min, 1e-45
    session.optimizer_step()


# Halves of finite doubles that are an infinite float or double by themselves.
DECEPTIVE = (
    0x3FF00000_FFF00000,
    0x3FF00000_7F800000,
    0x3FF00000_FFFFFFFF,
    0x7F800000_00000000,
    0x7FEFFFFF_FFFFFFFF,
)


def test_doubles_are_told_from_floats(tmp_path: Path) -> None:
    """The exponent of a double is longer, and its lower half may be anything."""
    text = "m (double[n,4] x) => (double[n,3] y) { a = MatMul (x, w) y = MatMul (a, v) }"
    w, v = uniform((4, 3), (3, 3))
    weights = {"w": w.astype(np.float64), "v": v.astype(np.float64)}
    write_artifacts(make_artifacts(source(text, weights), Recipe(loss="mse", optimizer="sgd")), tmp_path)
    (tmp_path / "meta.json").write_text("{}")
    np.savez(tmp_path / "reference.npz", loss=np.zeros(1))
    built = trainer(tmp_path)
    session = built.session((tmp_path / "checkpoint").read_bytes())
    x, target = uniform((5, 4), (5, 3))
    session.run(TRAIN, [x.astype(np.float64), target.astype(np.float64)])
    for name in weights:
        gradient = session.gradient(name).reshape(-1)
        for at in (0, 1, gradient.size - 1):
            for value in (np.nan, np.inf, -np.inf):
                kept, gradient[at] = gradient[at], value
                before = persistent(session, built)
                with pytest.raises(TrainerError, match=f"not finite: {name}$"):
                    session.optimizer_step()
                assert persistent(session, built) == before
                gradient[at] = kept
            kept = gradient[at]
            for bits in DECEPTIVE:
                gradient.view(np.uint64)[at] = bits
                session.optimizer_step()
            gradient[at] = kept
    progress = session._session.contents.progress.contents
    for rate in (np.nan, np.inf, -np.inf):  # a float
        progress.learning_rate = rate
        with pytest.raises(TrainerError, match="not finite: learning rate$"):
            session.optimizer_step()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_floats_are_checked_by_a_library_with_doubles(value: float) -> None:
    built = trainer(GOLDEN / "dense")
    doubles = {
        replace(k, types=tuple("double" if t == "float" else t for t in k.types))
        for k in built.contents.kernels
    }
    both = replace(
        built.contents, kernels=(*built.contents.kernels, *sorted(doubles - set(built.contents.kernels)))
    )
    built = replace(built, library=loaded(shared_library(emit_sources(both, registry())))[1])
    case = load(GOLDEN / "dense")
    session = built.session(case.checkpoint)
    session.run(TRAIN, case.batch(0))
    for name in (n for n, p in session.parameters.items() if p.gradient):
        gradient = session.gradient(name).reshape(-1)
        for at in range(min(gradient.size, 3)):
            kept, gradient[at] = gradient[at], value
            with pytest.raises(TrainerError, match=f"not finite: {name}$"):
                session.optimizer_step()
            gradient[at] = kept


def test_one_lost_pixel_leaves_the_model_whole():
    """The loss may well be finite: ReLU and MaxPool drop NaN. Without the check the model is lost."""
    case, built = load(GOLDEN / "conv"), trainer(GOLDEN / "conv")
    batch = [x.copy() for x in case.batch(0)]
    batch[0].reshape(-1)[5] = np.nan
    lost = {}
    for each in (built, without(built, FINITE)):
        session = each.session(case.checkpoint)
        session.run(TRAIN, batch)
        try:
            session.optimizer_step()
        except TrainerError as error:
            assert "not finite: " in str(error) and each is built
            session.lazy_reset_grad()
            session.run(TRAIN, case.batch(0))
            session.optimizer_step()
        lost[each is built] = sum(int(np.isnan(session.parameter(n)).sum()) for n in session.parameters)
    assert lost[True] == 0 < lost[False]


def tiny(case_name: str, scale: float) -> tuple[list[np.ndarray], bytes]:
    case = load(GOLDEN / case_name)
    batch = [x * np.float32(scale) if x.dtype == np.float32 else x for x in case.batch(0)]
    return batch, case.checkpoint


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no such mode")
def test_denormals_are_zero_for_the_time_of_a_call_only():
    """Measured as a ratio within one process; the caller's own arithmetic keeps its denormals."""
    built = trainer(GOLDEN / "conv")
    keeping = without(built, FLUSH)
    times: dict[tuple[bool, float], list[float]] = {}
    sessions = {}
    for each in (built, keeping):
        for scale in (1.0, 1e-39):
            batch, checkpoint = tiny("conv", scale)
            sessions[each is built, scale] = (each.session(checkpoint), batch)
    for _ in range(30):
        for key, (session, batch) in sessions.items():
            start = time.perf_counter()
            session.run(TRAIN, batch)
            times.setdefault(key, []).append(time.perf_counter() - start)
            smallest = np.array([1e-45], np.float32)
            assert (smallest * np.float32(3))[0] != 0, "the caller lost its denormals"
    typical = {key: median(values) for key, values in times.items()}
    assert typical[True, 1e-39] < 2 * typical[True, 1.0]
