"""Products of matrices in memory, by dot products or by tiles, packed or not: random sizes, and those around the bounds
between them, in every order of both operands and of the result."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from shared_kernels import DEFAULT_CXX, compile_library

SOURCE = """
#include "lib/gemm/packed_gemm.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace minbuild;

// C += A * B / 2, or without what C was, each with its columns side by side if it is `turned` (bits of A, B and C);
// `packs`: as libraries with packed products choose.
EXPORT void multiply(int packs, int turned, int m, int n, int k, int adds, const float* a, const float* b, float* c) {
  const bool of_a = turned & 1, of_b = turned & 2, of_c = turned & 4;
  Gemm<float> g = {m, n, k, a, of_a ? 1 : k, of_a ? m : 1, b, of_b ? 1 : n, of_b ? k : 1, c, of_c ? 1 : n};
  g.c_col = of_c ? m : 1;
  g.alpha = 0.5f, g.accumulate = adds != 0;
  if (!packs) return gemm(g);
  char* scratch = static_cast<char*>(__builtin_malloc(kRowBytes + kColumnBytes + 64));
  __builtin_memset(scratch, -1, kRowBytes + kColumnBytes + 64);  // not finite where nothing is packed
  gemm_at(g, reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) & -uintptr_t(64)));
  __builtin_free(scratch);
}
// 2 if the product of A and a turned B is one of tiles, 1 if it is one of dot products.
EXPORT int kind(int m, int n, int k) {
  const Gemm<float> g = {m, n, k, nullptr, k, 1, nullptr, 1, k, nullptr, n};
  return takes_tiles(g, true) ? 2 : takes_dots(g, vector_bytes()) ? 1 : 0;
}
EXPORT int wide() { return MB_DISPATCHES && vector_bytes() >= 32; }
"""
BUILDS = {"default": (), "avx512": ("-DMINBUILD_AVX512=1",)}
# Rows on both sides of a quarter of the depth and eight; columns that make whole panels, or not.
BOUNDS = tuple(
    (k // 4 + 8 + more, n, k) for k in (64, 100, 256) for more in (-1, 0, 1, 9) for n in (15, 16, 31, 48)
)
EPSILON = 2.0**-24


@pytest.fixture(scope="module", params=BUILDS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_library(tmp_path_factory.mktemp("products"), SOURCE, DEFAULT_CXX, BUILDS[request.param])


def _random_sizes(count: int) -> Iterator[tuple[int, int, int]]:
    random = np.random.default_rng(5)
    for _ in range(count):
        most = random.choice([20, 70, 200], 3)
        m, n, k = (int(random.integers(1, each)) for each in most)
        yield m, n * 16 if random.random() < 0.3 else n, k


def _check(library: ctypes.CDLL, sizes: tuple[int, int, int], packs: int, turned: int, adds: int) -> None:
    m, n, k = sizes
    random = np.random.default_rng(m + n + k)
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    c = np.full((n, m) if turned & 4 else (m, n), 0.25 if adds else np.nan, np.float32)
    given = [np.ascontiguousarray(x.T) if turned & bit else x for x, bit in ((a, 1), (b, 2))]
    library.multiply(packs, turned, m, n, k, adds, *(ctypes.c_void_p(x.ctypes.data) for x in (*given, c)))
    exact = [x.astype(np.float64) for x in (a, b)]
    wanted, size = (x @ y / 2 + 0.25 * adds for x, y in (exact, map(np.abs, exact)))
    error = np.abs((c.T if turned & 4 else c) - wanted)
    assert (error <= (k + 4) * EPSILON * size).all(), (sizes, packs, turned, adds)


@pytest.mark.parametrize("turned", range(8))
@pytest.mark.parametrize("packs", [0, 1], ids=["plain", "packed"])
def test_products_are_rounded_as_sums(library: ctypes.CDLL, packs: int, turned: int) -> None:
    for number, sizes in enumerate((*BOUNDS, *_random_sizes(100))):
        _check(library, sizes, packs, turned, number % 2)


def test_tiles_take_products_of_many_rows(library: ctypes.CDLL) -> None:
    if not library.wide():
        pytest.skip("one width of vectors")
    assert [library.kind(m, 64, 64) for m in (24, 25, 1024)] == [1, 2, 2]
    assert [library.kind(m, 64, 512) for m in (136, 137)] == [1, 2]
    assert [library.kind(1024, n, 64) for n in (1, 10, 16, 17, 32)] == [1, 1, 2, 1, 2]
