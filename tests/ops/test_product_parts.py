"""Products in parts, as threads share them: which are divided, into what, and that no part changes a bit."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import numpy as np
import pytest
from shared_kernels import DEFAULT_CXX, compile_library

SOURCE = """
#include "lib/gemm/packed_gemm.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace minbuild;

static int parts_run;
void minbuild::run_parts(Team*, int32_t members, int32_t parts, Part task, const void* work) {
  parts_run += parts;
  for (int32_t part = parts; part-- > 0;) task(work, part, part % members);  // in another order than alone
}

// In memory for as many `shares`. Returns the number of parts.
EXPORT int multiply(int members, int shares, int m, int n, int k, const float* a, const float* b, float* c) {
  Gemm<float> g = {m, n, k, a, k, 1, b, n, 1, c, n, 1};
  Team team = {members};
  divide_among(g, &team, int64_t(1) << 40);
  const int64_t bytes = shares * g.share * int64_t(sizeof(float));
  divide_among(g, &team, bytes);
  char* room = static_cast<char*>(__builtin_malloc(size_t(bytes) + 64));
  parts_run = 0;
  gemm_at(g, reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(room) + 63) & -uintptr_t(64)));
  __builtin_free(room);
  return parts_run;
}
// The rows and columns of every part. Returns the number of parts.
EXPORT int partition(int members, int m, int n, int k, int* rows, int* columns) {
  Gemm<float> g = {m, n, k, nullptr, k, 1, nullptr, n, 1, nullptr, n, 1};
  g.members = members;
  const Partition parts = partition_of(g, widest_bytes(), 1, costs_of(g, widest_bytes()));
  for (int part = 0; part < parts.count(); ++part) {
    const Gemm<float> one = parts.of(g, part);
    rows[part] = int(one.m), columns[part] = int(one.n);
  }
  return parts.count();
}
EXPORT int accumulators(int bytes, int packed) {
  return (packed ? packed_tile_rows(bytes) : tile_rows(bytes)) * kTileVectors;
}
EXPORT int tile_columns() { return int(unsigned(vector_bytes()) / sizeof(float)) * kTileVectors; }
"""
LEAST_WORK, LEAST_BYTES = 1 << 20, 1 << 18  # multiplications of a product, bytes of B under few rows


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("parts")
    (folder / "minbuild").mkdir()
    (folder / "minbuild/config.h").write_text("#define MB_THREADS 8\n")
    return compile_library(folder, SOURCE, DEFAULT_CXX, (f"-I{Path(folder)}", "-DMINBUILD_AVX512=1"))


def multiply(
    library: ctypes.CDLL, sizes: tuple[int, int, int], members: int, shares: int = 8
) -> tuple[int, bytes]:
    """The number of parts, and the bits of a product."""
    m, n, k = sizes
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape, np.float32) for shape in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, np.float32)
    parts = library.multiply(members, shares, m, n, k, *(ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)))
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
    return parts, c.tobytes()


@pytest.mark.parametrize(
    "sizes", [(64, 256, 200), (33, 531, 66), (531, 33, 66), (1, 1100, 129), (7, 300, 300), (301, 203, 1)]
)
def test_any_number_of_members_computes_the_same_bits(
    library: ctypes.CDLL, sizes: tuple[int, int, int]
) -> None:
    alone, bits = multiply(library, sizes, 1)
    assert alone == 0
    for members in (2, 3, 8):
        parts, found = multiply(library, sizes, members)
        assert found == bits and parts >= 2


@pytest.mark.parametrize(
    ("sizes", "divided"),
    [
        ((16, 256, LEAST_WORK // 4096), True),
        ((16, 256, LEAST_WORK // 4096 - 1), False),
        ((1, LEAST_BYTES // 1024, 256), True),
        ((1, LEAST_BYTES // 1024 - 1, 256), False),
    ],
)
def test_two_members_divide_what_is_large(
    library: ctypes.CDLL, sizes: tuple[int, int, int], divided: bool
) -> None:
    assert (multiply(library, sizes, 2)[0] > 1) is divided


def test_parts_are_whole_tiles(library: ctypes.CDLL) -> None:
    """Of a large product each of three members gets two parts, of a smaller one a single part."""
    columns = 24 * library.tile_columns()
    for work, parts in ((8, 3), (32, 6)):
        rows = work * 3 * LEAST_WORK // (columns * 512) + 1
        assert multiply(library, (rows, columns, 512), 3)[0] == parts


def partition(library: ctypes.CDLL, members: int, sizes: tuple[int, int, int]) -> list[tuple[int, int]]:
    """The rows and columns of the parts of a product, in the order in which members take them."""
    rows, columns = ((ctypes.c_int * 64)() for _ in range(2))
    count = library.partition(members, *sizes, rows, columns)
    return list(zip(rows[:count], columns[:count], strict=True))


@pytest.mark.parametrize("members", [2, 3, 8])
@pytest.mark.parametrize(
    "sizes", [(197, 192, 192), (128, 768, 768), (1024, 768, 768), (1024, 3072, 768), (49, 2048, 512)]
)
def test_members_have_neighbours_of_the_same_work(
    library: ctypes.CDLL, members: int, sizes: tuple[int, int, int]
) -> None:
    """Whole tiles can be even to a half of a member's share, where there are few of them."""
    parts = partition(library, members, sizes)
    work = [rows * columns for rows, columns in parts]
    assert sum(work) == sizes[0] * sizes[1]
    if len(parts) % members == 0:
        each = len(parts) // members
        shares = [sum(work[member * each : (member + 1) * each]) for member in range(members)]
        assert max(shares) <= 1.5 * sum(work) / members
        if any(rows < sizes[0] for rows, _ in parts[1:]):  # neighbours have the same rows
            assert all(parts[i][0] == parts[i - 1][0] for i in range(1, len(parts)) if i % each)


@pytest.mark.parametrize("sizes", [(197, 192, 192), (197, 768, 192)])
def test_rows_are_cut_where_columns_are_near(library: ctypes.CDLL, sizes: tuple[int, int, int]) -> None:
    """Elements that go from one member to another take longer than packing such columns twice."""
    assert [columns for _, columns in partition(library, 2, sizes)] == 2 * [sizes[1]]


def test_columns_are_cut_where_they_are_far(library: ctypes.CDLL) -> None:
    assert {rows for rows, _ in partition(library, 2, (128, 768, 768))} == {128}


def test_no_more_members_than_there_is_memory_for(library: ctypes.CDLL) -> None:
    sizes = (64, 256, 200)
    assert multiply(library, sizes, 8, shares=1) == (0, multiply(library, sizes, 1)[1])
    assert multiply(library, sizes, 8, shares=2) == multiply(library, sizes, 2)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="counts the registers of x86-64")
@pytest.mark.parametrize(("vector", "registers"), [(4, 16), (16, 16), (32, 16), (64, 32)])
@pytest.mark.parametrize("packed", [0, 1])
def test_a_tile_takes_half_of_the_registers_and_leaves_room_for_operands(
    library: ctypes.CDLL, vector: int, registers: int, packed: int
) -> None:
    """Operands are a row of B, as wide as the tile, and an element of A."""
    found = library.accumulators(vector, packed)
    assert registers / 2 <= found <= registers - 3
