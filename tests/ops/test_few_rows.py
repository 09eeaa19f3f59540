"""Products of few rows of A: B in place, whose rows are added to C in order, by vectors of any width."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from shared_kernels import DEFAULT_CXX, compile_library

SOURCE = """
#include "lib/gemm/packed_gemm.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace minbuild;

EXPORT void multiply(int m, int n, int k, int a_row, int a_col, int b_row, int b_col, int far, int adds, const float* a,
                     const float* b, float* c) {
  Gemm<float> g = {m, n, k, a, a_row, a_col, b, b_row, b_col, c, n, 1};
  g.alpha = 0.5f, g.accumulate = adds != 0;
  multiply_few(g, far != 0);
}
// As in a kernel with scratch memory, of which nothing but what it must have is written.
EXPORT int in_scratch(int m, int n, int k, int a_row, int a_col, int adds, const float* a, const float* b, float* c,
                      float* scratch) {
  Gemm<float> g = {m, n, k, a, a_row, a_col, b, 1, k, c, n, 1};
  g.alpha = 0.5f, g.accumulate = adds != 0;
  const intptr_t room = Blocks<float>(g, widest_bytes()).elements(g);
  scratch[room] = 7;
  gemm_at(g, scratch);
  return scratch[room] != 7 ? -1 : a_col != 1 && turns_rows(g);
}
EXPORT int wide() { return vector_bytes() >= 32; }
"""
BUILDS = (
    (),
    ("-DMINBUILD_AVX512=1",),
    ("-DMB_GEMM_OUTER=1",),
    ("-DMINBUILD_AVX512=1", "-DMB_GEMM_OUTER=1"),
    # Vectors of 64 bytes by what instructions there are: the same sums, on any processor.
    ("-DMINBUILD_AVX512=1", "-DMINBUILD_DISPATCH=0", "-D__AVX512F__=1", "-mavx2", "-mfma"),
)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> list[ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("rows")
    return [compile_library(_made(folder / str(i)), SOURCE, DEFAULT_CXX, b) for i, b in enumerate(BUILDS)]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("along", [False, True], ids=["rows of B", "columns of B"])
@pytest.mark.parametrize("transposed", [False, True], ids=["A", "A transposed"])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 16, 23])
def test_the_width_of_vectors_changes_no_bit(
    libraries: list[ctypes.CDLL], rows: int, transposed: bool, along: bool
) -> None:
    random = np.random.default_rng(rows)
    for n, k, beyond in (
        (32, 64, 0),
        (31, 33, 0),
        (77, 300, 5),
        (130, 97, 3),
        (1, 40, 1),
        (100, 1, 0),
        (215, 1, 0),
    ):
        a = random.standard_normal((rows, k), np.float32)
        stored = np.asfortranarray(a) if transposed else a
        lines, length = (n, k) if along else (k, n)
        b = random.standard_normal((lines, length + beyond), np.float32)
        right = b[:, :length].astype(np.float64)
        steps = (1, rows) if transposed else (k, 1)
        apart = (1, length + beyond) if along else (length + beyond, 1)
        for adds in (0, 1):
            expected = 0.5 * (a.astype(np.float64) @ (right.T if along else right)) + 0.25 * adds
            results = []
            for library in libraries:
                c = np.full((rows, n), 0.25, np.float32)
                given = (ctypes.c_void_p(x.ctypes.data) for x in (stored, b, c))
                library.multiply(rows, n, k, *steps, *apart, 1, adds, *given)
                np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)
                results.append(c.tobytes())
            assert len(set(results)) == 1


@pytest.mark.parametrize("rows", [4, 7, 12, 15])
def test_few_rows_of_a_transposed_a_are_dot_products(libraries: list[ctypes.CDLL], rows: int) -> None:
    """The bits of the same product of rows, by vectors of any width; not where scratch memory has no room for these."""
    random = np.random.default_rng(rows)
    scratch = np.zeros(1 << 18, np.float32)
    for n, k in ((40, 64), (77, 300), (130, 513), (17, 2000)):
        a = random.standard_normal((rows, k), np.float32)
        b = random.standard_normal((n, k), np.float32)
        for adds in (0, 1):
            results = []
            for library in libraries:
                for stored, steps in ((a, (k, 1)), (np.asfortranarray(a), (1, rows))):
                    c = np.full((rows, n), 0.25, np.float32)
                    given = (ctypes.c_void_p(x.ctypes.data) for x in (stored, b, c, scratch))
                    turned = library.in_scratch(rows, n, k, *steps, adds, *given)
                    fits = rows * k <= n * min(k, 256)
                    assert turned == (steps[0] == 1 and fits and library.wide())
                    expected = 0.5 * (a.astype(np.float64) @ b.astype(np.float64).T) + 0.25 * adds
                    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)
                    if fits:
                        results.append(c.tobytes())
            assert len(set(results)) <= 1
