"""Packed products by AVX-512 whose last panel is half as wide: the same bits as without, and fewer columns packed."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import trainers
from shared_kernels import DEFAULT_CXX, compile_library

from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase

pytestmark = pytest.mark.usefixtures("packed_convolutions")

SOURCE = """
#include "lib/gemm/packed_gemm.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace minbuild;

static int narrowest;  // panel so far

struct Columns {
  Gemm<float> g;
  void operator()(float* panel, int k, int depth, int j, int columns, int width) const {
    if (width < narrowest) narrowest = width;
    pack_strided<float>(&g, panel, k, depth, j, columns, width);
  }
};

struct Scratch {
  static constexpr size_t kRoom = kRowBytes + kColumnBytes + 64;
  void* const memory = __builtin_memset(__builtin_malloc(kRoom), -1, kRoom);  // not finite where nothing is packed

  ~Scratch() { __builtin_free(memory); }
  float* at() const { return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory) + 63) & -uintptr_t(64)); }
};

// Packed for vectors of so many bytes; the width of the narrowest panel. A lies as rows or, if `turned`, as columns.
EXPORT int multiply(int bytes, int m, int n, int k, int adds, int turned, const float* a, const float* b, float* c) {
  Gemm<float> g = {m, n, k, a, turned ? 1 : k, turned ? m : 1, b, n, 1, c, n, 1};
  g.accumulate = adds != 0;
  const Scratch scratch;
  const Columns columns = {g};
  narrowest = 1000;
  multiply_packed<float>(g, bytes, scratch.at(), pack_panels<float, Columns>, &columns, nullptr);
  return narrowest;
}
// The same of B in memory, which tiles may read or pack themselves: as rows or, if `along`, as columns.
EXPORT void multiply_in_place(int bytes, int m, int n, int k, int along, const float* a, const float* b, float* c) {
  const Gemm<float> g = {m, n, k, a, k, 1, b, along ? 1 : n, along ? k : 1, c, n, 1};
  const Scratch scratch;
  multiply_packed<float>(g, bytes, scratch.at(), pack_columns<float>, &g, nullptr);
}
EXPORT int has(int bytes) { return MB_DISPATCHES ? bytes >= 32 && bytes <= widest_bytes() : bytes == widest_bytes(); }
"""

BUILDS = {
    "dispatched": ("-DMINBUILD_AVX512=1",),
    # Vectors of 64 bytes by what instructions there are: the same sums, on any processor.
    "64-bytes": ("-DMINBUILD_AVX512=1", "-DMINBUILD_DISPATCH=0", "-D__AVX512F__=1"),
}


@pytest.fixture(scope="module", params=BUILDS)
def libraries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[ctypes.CDLL]:
    """Without half panels and with them."""
    made = []
    for on in (0, 1):
        options = (*BUILDS[request.param], f"-DMB_CONV_HALF_PANELS={on}")
        made.append(compile_library(tmp_path_factory.mktemp("halves"), SOURCE, DEFAULT_CXX, options))
    return made


@pytest.mark.parametrize("along", [0, 1], ids=["rows", "columns"])
@pytest.mark.parametrize(
    "sizes", [(48, 16, 256), (8, 16, 30), (96, 48, 300), (31, 49, 300), (64, 112, 784), (40, 64, 60)], ids=str
)
def test_half_panels_of_a_matrix_in_memory_change_no_bit(libraries, sizes, along) -> None:
    """Of layers of one tap, whose images are not copied: tiles transpose whole panels only."""
    m, n, k = sizes
    random = np.random.default_rng(k)
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    columns = np.ascontiguousarray(b.T) if along else b
    results = []
    for library in libraries:
        for width in (w for w in (32, 64) if library.has(w)):
            results.append(np.zeros((m, n), np.float32))
            given = (ctypes.c_void_p(x.ctypes.data) for x in (a, columns, results[-1]))
            library.multiply_in_place(width, m, n, k, along, *given)
    if results:
        np.testing.assert_allclose(results[0], a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
        assert {c.tobytes() for c in results} == {results[0].tobytes()}


def test_half_panels_change_no_bit(libraries: list[ctypes.CDLL]) -> None:
    plain, halves = libraries
    random = np.random.default_rng(7)
    widths = [w for w in (32, 64) if plain.has(w)]
    for m, n, k in ((8, 16, 30), (31, 49, 300), (130, 40, 513), (66, 536, 20), (24, 1, 64), (17, 528, 270)):
        a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
        for adds, turned in ((0, 0), (1, 0), (0, 1)):
            rows = np.ascontiguousarray(a.T) if turned else a
            results = []
            for library in (plain, halves):
                for width in widths:
                    results.append(np.full((m, n), 0.25, np.float32))
                    given = (ctypes.c_void_p(x.ctypes.data) for x in (rows, b, results[-1]))
                    narrowest = library.multiply(width, m, n, k, adds, turned, *given)
                    half = library is halves and width == 64 and 0 < n % 32 <= 16
                    assert narrowest == (width // 2 if not half else 16)
            if results:
                expected = a.astype(np.float64) @ b + 0.25 * adds
                np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-4)
                assert {c.tobytes() for c in results} == {results[0].tobytes()}


@pytest.mark.parametrize(
    ("size", "batch", "pad", "half"),
    [
        (16, 1, 0, True),
        (9, 8, 0, True),
        (9, 1, 0, False),
        (10, 1, 0, False),
        (36, 1, 1, True),
        (14, 1, 1, False),
    ],
)
def test_layers_ask_for_half_panels_that_they_fill(size: int, batch: int, pad: int, half: bool) -> None:
    """Of outputs in their own order."""
    known = registry()
    random = np.random.default_rng(1)
    x = random.standard_normal((batch, 128, size, size))
    w = random.standard_normal((128, 128, 3, 3))
    attributes = {
        "kernel_shape": (3, 3),
        "strides": (1, 1),
        "pads": (pad,) * 4,
        "dilations": (1, 1),
        "group": 1,
    }
    case = TestCase("y", (x, w), {**attributes, "auto_pad": "NOTSET"})
    plan = trainers.plan_of(trainers.one_node(known.ops[":Conv"], case).artifacts, known)
    assert ("conv.half_panels" in plan.features) == half
