"""Packed products of one block of rows: tiles pack B or fetch it ahead, and no bit depends on that."""

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

// Packed for vectors of so many bytes or, with its B in panels on the stack, not. B has `apart` elements from one of
// its lines to the next. 0 where it wrote beyond its scratch memory.
EXPORT int multiply(int bytes, int along, int m, int n, int k, int apart, int adds, const float* a, const float* b,
                    float* c) {
  Gemm<float> g = {m, n, k, a, k, 1, b, along ? 1 : apart, along ? apart : 1, c, n, 1};
  g.alpha = 0.5f, g.accumulate = adds != 0;
  if (bytes == 0) return multiply<float>(g, vector_bytes(), false, pack_strided<float>, &g), 1;
  const size_t room = Blocks<float>(g, bytes).elements(g) * sizeof(float);
  char* scratch = static_cast<char*>(__builtin_malloc(room + 192));
  __builtin_memset(scratch, -1, room + 192);  // not finite where nothing is packed
  // 16 bytes after a line of the cache, as memory of a session may be.
  float* const at = reinterpret_cast<float*>(((reinterpret_cast<uintptr_t>(scratch) + 63) & -uintptr_t(64)) + 16);
  multiply_packed<float>(g, bytes, at, pack_columns<float>, &g, nullptr);
  const char* const end = reinterpret_cast<char*>(at) + room;
  int kept = 1;
  for (int i = 0; i < 64; ++i) kept &= end[i] == -1;
  __builtin_free(scratch);
  return kept;
}
// 1 if the first tile of a panel packs it, 2 if the tiles of the panel before it do.
EXPORT int in_tiles(int m, int n, int k, int apart) {
  Gemm<float> g = {m, n, k, nullptr, k, 1, nullptr, apart, 1, nullptr, n, 1};
  if (!kPacksInTiles || vector_bytes() < 32) return 0;
  const Blocks<float> blocks(g, vector_bytes());
  return blocks.packs_in_tiles(g, vector_bytes()) ? 1 : blocks.packs_ahead(g, vector_bytes()) ? 2 : 0;
}
EXPORT int has(int bytes) { return MB_DISPATCHES ? bytes >= 32 && bytes <= widest_bytes() : bytes == widest_bytes(); }
EXPORT int wide() { return kPacksInTiles && vector_bytes() >= 32; }
"""


BUILDS = {
    "default": (),
    "avx512": ("-DMINBUILD_AVX512=1",),
    # Vectors of 64 bytes by what instructions there are: the same sums, on any processor.
    "64-bytes": ("-DMINBUILD_AVX512=1", "-DMINBUILD_DISPATCH=0", "-D__AVX512F__=1"),
}


@pytest.fixture(scope="module", params=BUILDS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_library(tmp_path_factory.mktemp("tiles"), SOURCE, DEFAULT_CXX, BUILDS[request.param])


@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("rows", [1, 4, 6, 8, 10, 24, 31, 66, 132])
def test_packing_in_tiles_changes_no_bit(library: ctypes.CDLL, along: int, rows: int) -> None:
    random = np.random.default_rng(rows)
    sizes = ((16, 64, 0), (48, 256, 0), (77, 300, 5), (130, 513, 0), (15, 40, 1), (70, 12, 0))
    # The last panels of three vectors of 64 bytes may have two.
    sizes += ((64, 100, 3), (81, 333, 0), (96, 200, 0), (113, 64, 7), (176, 270, 2), (256, 90, 0))
    # B in pages: tiles pack the panel after theirs, where there are many of them.
    paged = ((1060, 270, 988), (64, 520, 960), (70, 90, 954), (144, 300, 880))
    for n, k, beyond in sizes + (() if along else paged):
        lines, length = (n, k) if along else (k, n)
        a = random.standard_normal((rows, k), np.float32)
        b = random.standard_normal((lines, length + beyond), np.float32)
        for adds in (0, 1):
            widths = (0, *(w for w in (16, 32, 64) if library.has(w)))
            results = [np.full((rows, n), 0.25, np.float32) for _ in widths]
            for width, c in zip(widths, results, strict=True):
                given = (ctypes.c_void_p(x.ctypes.data) for x in (a, b, c))
                assert library.multiply(width, along, rows, n, k, length + beyond, adds, *given)
            expected = (
                0.5 * (a.astype(np.float64) @ (b[:, :length].T if along else b[:, :length])) + 0.25 * adds
            )
            np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-4)
            assert {c.tobytes() for c in results} == {results[0].tobytes()}


def test_tiles_pack_the_panel_after_theirs_of_a_far_b(library: ctypes.CDLL) -> None:
    """Or of any where tiles are many, but for one panel alone or low tiles alone."""
    if not library.wide():
        pytest.skip("this processor has no wide vectors")
    assert library.in_tiles(32, 768, 768, 768) == 1
    assert library.in_tiles(64, 1024, 1024, 1024) == 1
    assert library.in_tiles(65, 1024, 1024, 1024) == 2
    assert library.in_tiles(32, 2048, 2048, 2048) == 2
    assert library.in_tiles(65, 16, 1024, 1024) == 1
    assert library.in_tiles(4, 768, 768, 768) == 0


def test_narrow_vectors_pack_by_copies(tmp_path: Path) -> None:
    """Without wide vectors nothing is packed in tiles."""
    narrow = compile_library(tmp_path, SOURCE, DEFAULT_CXX, ("-DMINBUILD_DISPATCH=0",))
    assert not narrow.wide()
