"""The learning kit: Python against definitions, the C header against Python, and its size on a Cortex-M4F."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from static_headers import M4F, SMALL, compiled, functions, symbols, wrappers

from minbuild.errors import BadInput
from minbuild.training.learning_kit import (
    EarlyStopping,
    Reservoir,
    RunningMean,
    Threshold,
    cosine_rate,
    step_rate,
)

HEADER, MARKER = "minbuild/learning.h", "MB_KIT"
MOST = 400  # bytes of a function


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("kit") / "kit.so"
    library = ctypes.CDLL(str(compiled(wrappers(HEADER, MARKER), path, "-O2", "-shared", "-fPIC")))
    for name in ("out_mb_cosine_rate", "out_mb_step_rate"):
        getattr(library, name).restype = ctypes.c_float
    for name in ("out_mb_reservoir_place", "out_mb_reservoir_pick"):
        getattr(library, name).restype = ctypes.c_uint32
    return library


class CEarlyStopping(ctypes.Structure):
    _fields_ = [
        ("least_gain", ctypes.c_float), ("patience", ctypes.c_uint32), ("best", ctypes.c_float),
        ("best_at", ctypes.c_uint32), ("count", ctypes.c_uint32),
    ]  # fmt: skip


class CRunningMean(ctypes.Structure):
    _fields_ = [("mean", ctypes.c_float), ("count", ctypes.c_uint32)]


class CReservoir(ctypes.Structure):
    _fields_ = [("capacity", ctypes.c_uint32), ("count", ctypes.c_uint32), ("seed", ctypes.c_uint32)]


class CThreshold(ctypes.Structure):
    _fields_ = [
        ("forget", ctypes.c_float), ("mean", ctypes.c_float), ("variance", ctypes.c_float),
        ("count", ctypes.c_uint32), ("votes", ctypes.c_uint32),
    ]  # fmt: skip


def test_no_function_is_larger_than_its_share(tmp_path: Path) -> None:
    made = compiled(wrappers(HEADER, MARKER), tmp_path / "kit.o", *M4F, *SMALL)
    sizes = {s.name: s.size for s in symbols(made) if s.name.startswith("out_")}
    assert set(sizes) == {f"out_{name}" for _, name, _ in functions(HEADER, MARKER)}
    assert len(sizes) >= 10 and {n: size for n, size in sizes.items() if not 0 < size <= MOST} == {}
    print({name.removeprefix("out_"): size for name, size in sorted(sizes.items())})


def test_an_unused_header_costs_nothing(tmp_path: Path) -> None:
    made = compiled(f'#include "{HEADER}"\nint one;\n', tmp_path / "empty.o", "-Os", "-c")
    assert [s.name for s in symbols(made) if s.name.startswith("mb_")] == []


def test_schedules_begin_and_end_where_they_should() -> None:
    assert cosine_rate(0.1, 0.01, 0, 5, 105) == 0 and cosine_rate(0.1, 0.01, 5, 5, 105) == pytest.approx(0.1)
    assert cosine_rate(0.1, 0.01, 55, 5, 105) == pytest.approx(0.055)
    assert cosine_rate(0.1, 0.01, 105, 5, 105) == cosine_rate(0.1, 0.01, 10**6, 5, 105) == 0.01
    assert step_rate(0.8, 0.5, 29, 10) == pytest.approx(0.2) and step_rate(0.8, 0.5, 29, 0) == 0.8


def test_schedules_in_c(kit: ctypes.CDLL) -> None:
    real = ctypes.c_float
    for step in (*range(0, 130, 3), 10**6):
        found = kit.out_mb_cosine_rate(real(0.1), real(0.01), step, 5, 105)
        # A polynomial whose first left-out term is 6e-8, in some roundings of float32.
        assert found == pytest.approx(cosine_rate(0.1, 0.01, step, 5, 105), rel=2e-6, abs=1e-8)
        found = kit.out_mb_step_rate(real(0.1), real(0.9), step % 130, 10)
        assert found == pytest.approx(step_rate(0.1, 0.9, step % 130, 10), rel=1e-5)
    assert kit.out_mb_step_rate(real(0.5), real(0.9), 7, 0) == 0.5


@pytest.mark.parametrize(
    ("losses", "stops_at", "best_at"),
    [
        ([3, 2, 1, 1.5, 1.4, 1.3], 5, 2),
        ([3, 2.95, 2.92, 2.91], 3, 0),  # gains below the least
        ([float("nan"), 2, 3, float("nan"), 3], 4, 1),
        ([float("nan")] * 4, 3, 0),
        ([4, 3, 2, 1, 0.5, 0.1], None, 5),
    ],
)
def test_training_stops_early(
    kit: ctypes.CDLL, losses: list[float], stops_at: int | None, best_at: int
) -> None:
    python, c = EarlyStopping(patience=3, least_gain=0.1), CEarlyStopping(least_gain=0.1, patience=3)
    for at, loss in enumerate(losses):
        stopped = python.stop(loss)
        assert (
            stopped == bool(kit.out_mb_early_stop(ctypes.byref(c), ctypes.c_float(loss))) == (at == stops_at)
        )
    assert python.best_at == c.best_at == best_at and python.count == c.count == len(losses)


def test_running_means_are_means(kit: ctypes.CDLL) -> None:
    random = np.random.default_rng(0)
    python, c = RunningMean(), CRunningMean()
    sums = counts = right = 0.0
    accuracy, in_c = RunningMean(), CRunningMean()
    for rows in (5, 3, 8, 1):
        value = float(random.standard_normal())
        python.add(value, rows)
        kit.out_mb_add_mean(ctypes.byref(c), ctypes.c_float(value), rows)
        sums, counts = sums + value * rows, counts + rows
        scores, labels = random.integers(0, 3, (rows, 4)).astype(np.float32), random.integers(0, 4, rows)
        accuracy.add_accuracy(scores, labels)
        pointers = (ctypes.c_void_p(scores.ctypes.data), ctypes.c_void_p(labels.ctypes.data))
        kit.out_mb_add_accuracy(ctypes.byref(in_c), *pointers, rows, 4)
        right += float((scores.argmax(1) == labels).sum())
    assert python.mean == pytest.approx(sums / counts) == pytest.approx(c.mean, rel=1e-5)
    assert accuracy.mean == pytest.approx(right / counts) == pytest.approx(in_c.mean, rel=1e-5)
    kit.out_mb_add_mean(ctypes.byref(CRunningMean()), ctypes.c_float(1), 0)  # divides by nothing


def test_every_sample_is_kept_as_likely(kit: ctypes.CDLL) -> None:
    runs, samples, capacity = 800, 30, 6
    kept = np.zeros(samples)
    for seed in range(runs):
        python, c = Reservoir(capacity, seed), CReservoir(capacity, 0, seed)
        places: dict[int, int] = {}
        for sample in range(samples):
            place = python.place()
            found = kit.out_mb_reservoir_place(ctypes.byref(c))
            assert found == (0xFFFFFFFF if place is None else place)
            if place is not None:
                places[place] = sample
        assert python.pick() == kit.out_mb_reservoir_pick(ctypes.byref(c))
        assert sorted(places) == list(range(capacity))
        kept[list(places.values())] += 1
    share = capacity / samples  # binomial: four deviations and a half for thirty of them
    np.testing.assert_allclose(kept / runs, share, atol=4.5 * np.sqrt(share * (1 - share) / runs))


def test_an_empty_reservoir_has_nothing_to_replay(kit: ctypes.CDLL) -> None:
    assert Reservoir(3).pick() is None
    assert kit.out_mb_reservoir_pick(ctypes.byref(CReservoir(3, 0, 1))) == 0xFFFFFFFF
    with pytest.raises(BadInput, match="capacity 0"):
        Reservoir(0)


@pytest.mark.parametrize("forget", [0.0, 0.2])
def test_thresholds_follow_mean_and_deviation(kit: ctypes.CDLL, forget: float) -> None:
    scores = np.random.default_rng(2).gamma(4, 0.3, 60)
    python, c = Threshold(forget), CThreshold(forget=forget)
    for score in scores:
        python.add(float(score))
        kit.out_mb_threshold_add(ctypes.byref(c), ctypes.c_float(score))
    if not forget:
        assert python.mean == pytest.approx(scores.mean()) and python.variance == pytest.approx(scores.var())
    assert c.mean == pytest.approx(python.mean, rel=1e-5) and c.variance == pytest.approx(
        python.variance, rel=1e-4
    )
    edge = python.mean + 3 * python.variance**0.5
    for score, wanted in ((edge * 0.999, False), (edge * 1.001, True), (0.0, False), (float("nan"), True)):
        found = kit.out_mb_threshold_exceeded(ctypes.byref(c), ctypes.c_float(score), ctypes.c_float(3))
        assert python.exceeded(score, 3) == bool(found) == wanted


def test_votes_count_the_last_scores(kit: ctypes.CDLL) -> None:
    python, c = Threshold(mean=0, variance=1, count=9), CThreshold(mean=0, variance=1, count=9)
    scores = [9, 0, 9, 9, 0, 0, 9, 0, 0, 0, 9, 9, 9]
    for at, score in enumerate(scores):
        wanted = sum(each > 3 for each in scores[max(0, at - 3) : at + 1]) >= 2
        found = kit.out_mb_threshold_vote(ctypes.byref(c), ctypes.c_float(score), ctypes.c_float(3), 4, 2)
        assert python.vote(score, 3, 4, 2) == bool(found) == wanted
    assert (
        python.vote(0, 3, 32, 7)
        == bool(kit.out_mb_threshold_vote(ctypes.byref(c), ctypes.c_float(0), ctypes.c_float(3), 32, 7))
        is True
    )
