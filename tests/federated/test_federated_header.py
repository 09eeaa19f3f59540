"""federated.h: each function against minbuild.federated, and its size on a Cortex-M4F."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import numpy as np
import pytest
from static_headers import M4F, SMALL, compiled, functions, symbols, wrappers

from minbuild.errors import BadInput
from minbuild.federated import clipped, quantized

HEADER, MARKER = "minbuild/federated.h", "MB_FEDERATED"
MOST = 1250  # bytes of all functions on a Cortex-M4F, each of which a program pays for if it calls it
BITS = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)
FLOATS = ctypes.POINTER(ctypes.c_float)


class CRandom(ctypes.Structure):
    _fields_ = [("bits", BITS), ("user", ctypes.c_void_p)]


class Drawn:
    """The random numbers of a test, for C as 32 bits and for Python as numpy's generator gives them."""

    def __init__(self, seed: int) -> None:
        self.bits = np.random.default_rng(seed).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
        self.at = 0
        self.kept = BITS(self.next)
        self.c = CRandom(self.kept, None)

    def next(self, user: object) -> int:
        self.at += 1
        return int(self.bits[(self.at - 1) % self.bits.size])

    def random(self, shape: tuple[int, ...]) -> np.ndarray:
        """As numpy's generator: from 0 to below 1, of the 24 bits that C takes."""
        count = math.prod(shape)
        return ((self.bits[:count] >> 8) * 2.0**-24).reshape(shape)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("kit") / "kit.so"
    library = ctypes.CDLL(str(compiled(wrappers(HEADER, MARKER), path, "-O2", "-shared", "-fPIC")))
    for name in ("root", "update_norm", "natural_log"):
        getattr(library, f"out_mb_{name}").restype = ctypes.c_float
    return library


def at(array: np.ndarray) -> object:
    return array.ctypes.data_as(FLOATS)


def test_all_functions_together_fit_a_small_chip(tmp_path: Path) -> None:
    made = compiled(wrappers(HEADER, MARKER), tmp_path / "kit.o", *M4F, *SMALL)
    sizes = {s.name.removeprefix("out_"): s.size for s in symbols(made) if s.name.startswith("out_")}
    assert set(sizes) == {name for _, name, _ in functions(HEADER, MARKER)}
    print(sizes)
    # Those that are parts of others are counted once, in the function that calls them.
    whole = ("mb_update_since", "mb_update_clip", "mb_update_noise", "mb_update_quantize")
    assert 0 < sum(sizes[name] for name in whole) <= MOST


def int8_of(
    kit: ctypes.CDLL, update: np.ndarray, block: int, drawn: Drawn
) -> tuple[int, np.ndarray, np.ndarray]:
    """The return code, the values, and the scales."""
    values, scales = np.empty(update.size, np.int8), np.empty(-(-update.size // block), np.float32)
    out = (values.ctypes.data_as(ctypes.c_char_p), at(scales), ctypes.byref(drawn.c))
    done = kit.out_mb_update_quantize(at(update), update.size, block, *out)
    return done, values, scales


def test_the_root_is_that_of_ieee_within_a_unit(kit: ctypes.CDLL) -> None:
    for x in (1e-38, 3e-20, 0.5, 2.0, 3.0, 1e10, 3.4e38):
        wanted = np.sqrt(np.float32(x))
        assert abs(kit.out_mb_root(ctypes.c_float(x)) - wanted) <= np.spacing(wanted)
    assert kit.out_mb_root(ctypes.c_float(-1)) == kit.out_mb_root(ctypes.c_float(0)) == 0


def test_the_logarithm_is_right(kit: ctypes.CDLL) -> None:
    for x in (2.0**-32, 1e-6, 0.1, 0.7, 0.70710678, 0.99999, 1.0, 1.4, 1.5, 7.0, 1e30):
        value = float(np.float32(x))
        assert kit.out_mb_natural_log(ctypes.c_float(x)) == pytest.approx(math.log(value), rel=2e-7, abs=2e-7)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e20, 1e37])
def test_clipping_is_that_of_python(kit: ctypes.CDLL, scale: float) -> None:
    update = (np.random.default_rng(1).standard_normal(5000) * scale).astype(np.float32)
    length = float(np.linalg.norm(update.astype(np.float64)))
    if length < 3e38:
        assert kit.out_mb_update_norm(at(update), update.size) == pytest.approx(length, rel=1e-6)
    for norm in (0.5 * length, 2 * length):
        if not norm < 3e38:
            continue
        mine = update.copy()
        assert kit.out_mb_update_clip(at(mine), mine.size, ctypes.c_float(norm)) == 1
        np.testing.assert_allclose(mine, clipped(update, norm), rtol=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_and_unchanged(kit: ctypes.CDLL, wrong: float) -> None:
    update = np.array([1, wrong, 3], np.float32)
    before = update.tobytes()
    assert kit.out_mb_update_clip(at(update), 3, ctypes.c_float(1)) == 0 and update.tobytes() == before
    assert int8_of(kit, update, 256, Drawn(1))[0] == 0
    with pytest.raises(BadInput):
        clipped(update, 1)


def test_an_update_of_zeros_stays(kit: ctypes.CDLL) -> None:
    update = np.zeros(4, np.float32)
    assert kit.out_mb_update_clip(at(update), 4, ctypes.c_float(1)) == 1 and not update.any()


def test_the_difference_is_taken_in_place(kit: ctypes.CDLL) -> None:
    server, trained = np.random.default_rng(2).standard_normal((2, 33)).astype(np.float32)
    update = trained.copy()
    kit.out_mb_update_since(at(update), at(server), 33)
    assert update.tobytes() == (trained - server).tobytes()


@pytest.mark.parametrize(("count", "block"), [(1, 256), (256, 256), (700, 256), (64, 1), (10, 3)])
def test_int8_is_that_of_python(kit: ctypes.CDLL, count: int, block: int) -> None:
    update = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    update[count // 2 : count // 2 + 3] = 0
    drawn = Drawn(7)
    done, values, scales = int8_of(kit, update, block, drawn)
    assert done == 1
    wanted = quantized(update, drawn, block)  # type: ignore[arg-type]
    np.testing.assert_array_equal(scales, wanted.scale)
    # Python adds in float64, C in float32: the same but where the sum is within 2^-24 of a whole number.
    assert np.count_nonzero(values != wanted.values) <= count // 500
    assert np.abs(values * np.repeat(scales, block)[:count] - update).max() <= scales.max() * 1.0001


def test_int8_keeps_the_mean(kit: ctypes.CDLL) -> None:
    update = np.linspace(-1, 1, 101).astype(np.float32)
    total, drawn, rounds = np.zeros(101), Drawn(3), 600
    for _ in range(rounds):
        _, values, scales = int8_of(kit, update, 256, drawn)
        total += values * float(scales[0])
    # A value between two steps has at most half a step of deviation; five of the mean's.
    assert np.abs(total / rounds - update).max() < 5 * 0.5 * float(scales[0]) / math.sqrt(rounds)


def test_noise_is_normally_distributed(kit: ctypes.CDLL) -> None:
    count, drawn = 1 << 16, Drawn(11)
    update = np.zeros(count - 1, np.float32)  # an odd number: the last of a pair is left out
    kit.out_mb_update_noise(at(update), update.size, ctypes.c_float(2), ctypes.byref(drawn.c))
    assert drawn.at == count
    values = np.sort(update.astype(np.float64) / 2)
    expected = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in values])
    steps = np.arange(1, values.size + 1) / values.size
    # Kolmogorov and Smirnov: above 1.95 / sqrt(n) once in 1,000 samples.
    assert np.abs(expected - steps).max() < 1.95 / math.sqrt(values.size)
    assert abs(np.corrcoef(update[:-1:2], update[1::2])[0, 1]) < 4 / math.sqrt(count / 2)
    assert 3.5 < np.abs(values).max() < 6.67


def test_an_unused_header_costs_nothing(tmp_path: Path) -> None:
    made = compiled(f'#include "{HEADER}"\nint one;\n', tmp_path / "empty.o", "-Os", "-c")
    assert [s.name for s in symbols(made) if "mb_" in s.name] == []


CLIENT = """
#include <stdio.h>
#include "minbuild/trainer.h"
#include "minbuild/federated.h"
#define MOST 100000
static char plan[MOST], checkpoint[MOST];
static float parameters[MOST], server[MOST], images[64 * 64];
static int64_t labels[64];
static size_t size_of(const char* path, char* data) {
  FILE* file = fopen(path, "rb");
  size_t size = file ? fread(data, 1, MOST, file) : 0;
  if (file) fclose(file);
  return size;
}
int main(int argc, char** argv) {
  size_t plan_size = size_of(argv[1], plan), size = size_of(argv[2], checkpoint), count = 0, i;
  mb_session* session = 0;
  mb_options options = {0};
  mb_tensor inputs[] = {{images, MB_FLOAT, 2, {ROWS, COLUMNS}}, {labels, MB_INT64, 1, {ROWS}}};
  int step;
  FILE* batch = fopen(argv[3], "rb");
  if (argc != 4 || !batch || mb_create(plan, plan_size, checkpoint, size, &options, &session) != MB_OK) return 1;
  mb_parameters_size(session, 1, &count);
  mb_copy_parameters_to_buffer(session, server, count, 1);
  for (step = 0; step < STEPS; ++step) {
    if (fread(images, 4, ROWS * COLUMNS, batch) + fread(labels, 8, ROWS, batch) != ROWS * (COLUMNS + 1)) return 2;
    if (mb_train(session, inputs, 2) || mb_optimizer_step(session) || mb_lazy_reset_grad(session)) return 3;
  }
  mb_copy_parameters_to_buffer(session, parameters, count, 1);
  mb_update_since(parameters, server, (uint32_t)count);
  if (!mb_update_clip(parameters, (uint32_t)count, 0.05f)) return 4;
  for (i = 0; i < count; ++i) printf("%.9g\\n", parameters[i]);
  mb_destroy(session);
  return 0;
}
"""
