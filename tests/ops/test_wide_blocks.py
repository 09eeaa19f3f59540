"""Packed products whose blocks of columns are wider, as many rows of A are packed: no bit depends on that."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from shared_kernels import DEFAULT_CXX, compile_library

from minbuild.ir import ElementType
from minbuild.ir.dims import symbol
from minbuild.ir.kernel_choice import KernelChoice
from minbuild.ops.linear_algebra.gemm import gemm_kernel
from minbuild.ops.linear_algebra.gemm_packing import PACKED_BYTES, packing_scratch

SOURCE = """
#define MB_PRODUCT_TYPES(each) each(float)
#include "lib/gemm/packed_gemm.cc"
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace minbuild;

static Gemm<float> product(int wide, int order, int m, int n, int k, const float* a, const float* b, float* c) {
  Gemm<float> g = {m, n, k, a, order & 1 ? 1 : k, order & 1 ? m : 1, b, order & 2 ? 1 : n, order & 2 ? k : 1, c, n};
  g.wide = wide != 0;
  return g;
}
// Bytes of scratch memory, and columns of a block.
EXPORT int room(int wide, int order, int m, int n, int k, int* columns) {
  const Gemm<float> g = product(wide, order, m, n, k, nullptr, nullptr, nullptr);
  const Blocks<float> blocks(g, widest_bytes(), true);
  *columns = int(blocks.columns);
  return int(blocks.elements(g) * intptr_t(sizeof(float)));
}
EXPORT int packs_all() { return widest_bytes() == 64; }
EXPORT void multiply(int wide, int order, int m, int n, int k, const float* a, const float* b, float* c,
                     float* scratch) {
  gemm_at(product(wide, order, m, n, k, a, b, c), scratch);
}
// 2 if blocks are wide in `bytes` of scratch memory, 1 if they are not, 0 if it is too small.
EXPORT int fits(int m, int n, int k, int bytes) {
  Gemm<float> g = product(0, 1, m, n, k, nullptr, nullptr, nullptr);
  const struct {
    int count;
  } scratch = {bytes};
  return take_scratch(g, 0, &scratch) ? 1 + g.wide : 0;  // a call without threads
}
"""
SIZES = [(512, 1024, 256), (513, 1100, 300), (700, 530, 512), (1030, 2100, 70)]
BEYOND = 64  # elements
BATCH = symbol("batch")


@pytest.fixture(scope="module", params=[(), ("-DMINBUILD_AVX512=1",)], ids=["default", "avx512"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_library(tmp_path_factory.mktemp("blocks"), SOURCE, DEFAULT_CXX, request.param)


def _room(library: ctypes.CDLL, wide: int, order: int, sizes: tuple[int, int, int]) -> tuple[int, int]:
    columns = ctypes.c_int()
    return library.room(wide, order, *sizes, ctypes.byref(columns)), columns.value


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("order", range(4), ids=["NN", "TN", "NT", "TT"])
def test_wide_blocks_change_no_bit(library: ctypes.CDLL, order: int, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    random = np.random.default_rng(m)
    a, b = (random.standard_normal(count, np.float32) for count in (m * k, k * n))
    results = []
    for wide in (0, 1):
        room = _room(library, wide, order, sizes)[0] // 4
        scratch, c = np.full(room + BEYOND, np.nan, np.float32), np.zeros((m, n), np.float32)
        pointers = (ctypes.c_void_p(x.ctypes.data) for x in (a, b, c, scratch))
        library.multiply(wide, order, m, n, k, *pointers)
        assert np.isnan(scratch[room:]).all()
        results.append(c)
    assert results[0].tobytes() == results[1].tobytes()
    left = a.reshape(k, m).T if order & 1 else a.reshape(m, k)
    right = b.reshape(n, k).T if order & 2 else b.reshape(k, n)
    np.testing.assert_allclose(
        results[1], left.astype(np.float64) @ right.astype(np.float64), rtol=1e-4, atol=1e-4
    )


def test_a_thousand_columns_are_one_block(library: ctypes.CDLL) -> None:
    """Where many rows of A are packed, and nowhere else. Tiles of AVX-512 have contiguous ones packed as well."""
    (plain, few), (wide, many) = (_room(library, wide, 1, (1024, 1024, 256)) for wide in (0, 1))
    assert few < 1024 <= many and plain < wide
    assert _room(library, 1, 1, (256, 1024, 256)) == _room(library, 0, 1, (256, 1024, 256))
    in_place, packed = (_room(library, wide, 0, (1024, 1024, 250)) for wide in (0, 1))
    assert packed > in_place if library.packs_all() else packed == in_place


def test_blocks_are_wide_where_scratch_memory_has_room_for_them(library: ctypes.CDLL) -> None:
    sizes = (1024, 1024, 256)
    plain, wide = (_room(library, wide, 1, sizes)[0] for wide in (0, 1))
    assert [library.fits(*sizes, room) for room in (plain - 1, plain, wide - 1, wide)] == [0, 1, 1, 2]


@pytest.mark.parametrize("sizes", [*SIZES, (256, 1024, 256), (2000, 4000, 4000)], ids=str)
def test_the_planner_declares_the_memory_of_wide_blocks(
    library: ctypes.CDLL, sizes: tuple[int, int, int]
) -> None:
    kernels = SimpleNamespace(takes=lambda packed, plain, pays: pays, affords=lambda scratch: True)
    context = SimpleNamespace(element=lambda: ElementType.FLOAT, kernels=kernels)
    (declared,) = packing_scratch(context, gemm_kernel, *sizes)
    for order in range(4):
        assert _room(library, 1, order, sizes)[0] <= declared.shape[0]


def test_a_budget_keeps_blocks_narrow() -> None:
    """Where memory has no room for kernels that take more of it than others."""
    declared = []
    for most in (None, 1 << 20):
        choice = KernelChoice(scratch=most)
        context = SimpleNamespace(element=lambda: ElementType.FLOAT, kernels=choice)
        (scratch,) = packing_scratch(context, gemm_kernel, 128 * BATCH, 1024, 1024)
        declared.append(scratch.shape[0])
    assert declared[1] == PACKED_BYTES < declared[0]


@pytest.mark.parametrize(
    ("sizes", "wide"),
    [
        ((128 * BATCH, 768, 3072), True),
        ((768, 768, 128 * BATCH), True),
        ((BATCH, 1024, 1024), False),  # few rows
        ((256, 3072, 128 * BATCH), False),
        ((1000, 1280, BATCH), False),  # a head: few products in each sum, so that a block has many columns
        ((128 * BATCH, 256, 1024), False),  # one block
    ],
    ids=str,
)
def test_products_of_few_rows_and_short_sums_take_no_memory_for_wide_blocks(sizes, wide) -> None:
    context = SimpleNamespace(element=lambda: ElementType.FLOAT, kernels=KernelChoice())
    (scratch,) = packing_scratch(context, gemm_kernel, *sizes)
    assert (scratch.shape[0] > PACKED_BYTES) is wide
