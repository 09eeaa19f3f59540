"""Packed products where tiles load packed rows as vectors, under an emulator: the bits of plain products."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]

from shared_kernels import KERNELS  # noqa: E402

from minbuild.toolchain import find_emulator, parse_target  # noqa: E402

pytestmark = pytest.mark.targets

SOURCE = """
#include "lib/gemm/packed_gemm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
using namespace minbuild;

// Rows of a matrix in memory, as if something wrote them.
template <class T>
struct CopiedRows {
  intptr_t row, column;
  void operator()(T* to, intptr_t step, const T* from, intptr_t count, intptr_t depth) const {
    for (intptr_t r = 0; r < count; ++r)
      for (intptr_t c = 0; c < depth; ++c) to[r * step + c] = from[r * row + c * column];
  }
};

template <class T>
T* room(intptr_t count) {
  return static_cast<T*>(malloc(count * sizeof(T)));
}

template <class T>
int wrong(int m, int n, int k, bool a_transposed, bool b_transposed) {
  T *a = room<T>(m * k), *b = room<T>(k * n), *plain = room<T>(m * n), *packed = room<T>(m * n);
  unsigned random = 1;
  for (int i = 0; i < m * k; ++i) a[i] = T(int(random = random * 1664525 + 1013904223) >> 8) / (1 << 23);
  for (int i = 0; i < k * n; ++i) b[i] = T(int(random = random * 1664525 + 1013904223) >> 8) / (1 << 23);
  Gemm<T> g = {m, n, k, a, a_transposed ? 1 : k, a_transposed ? m : 1, b, b_transposed ? 1 : n,
               b_transposed ? k : 1, plain, n};
  multiply<T>(g, vector_bytes(), false, pack_strided<T>, &g);
  const int bytes = widest_bytes();
  g.c = packed;
  T* scratch = room<T>(Blocks<T>(g, bytes).elements(g));
  multiply_packed<T>(g, bytes, scratch, pack_columns<T>, &g, nullptr);
  int found = memcmp(plain, packed, m * n * sizeof(T)) != 0;
  memset(packed, 0, m * n * sizeof(T));
  multiply_packed<T>(g, bytes, scratch, pack_columns<T>, &g, nullptr, CopiedRows<T>{g.a_row, g.a_col});
  found += 2 * (memcmp(plain, packed, m * n * sizeof(T)) != 0);
  if (found) printf("%d %d %d %d %d: %d\\n", m, n, k, a_transposed, b_transposed, found);
  return found;
}

int main() {
  const int sizes[][3] = {{16, 16, 1}, {17, 31, 3}, {64, 16, 64}, {131, 77, 65}, {40, 24, 1100}, {9, 80, 600}};
  int found = 0, count = 0;
  for (auto& s : sizes)
    for (int order = 0; order < 4; ++order, ++count)
      found |= wrong<float>(s[0], s[1], s[2], order & 1, order & 2) |
               wrong<double>(s[0], s[1], s[2], order & 1, order & 2);
  printf("%d products\\n", count);
  return found;
}
"""


def test_packed_rows_change_no_bit(tmp_path: Path) -> None:
    emulator = find_emulator(parse_target("aarch64-linux-musl"))
    if emulator is None:
        pytest.skip("no qemu-aarch64 here")
    (tmp_path / "unit.cc").write_text(SOURCE)
    compiler = (sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl", "-static")
    # The C++ library would be built first, which takes minutes, and is not used.
    flags = (
        "-nostdlib++",
        "-std=c++17",
        "-Oz",
        "-fno-exceptions",
        f"-I{KERNELS}",
        f"-I{KERNELS / 'include'}",
    )
    program = tmp_path / "program"
    subprocess.run((*compiler, *flags, str(tmp_path / "unit.cc"), "-o", str(program)), check=True)
    done = subprocess.run((*emulator, str(program)), capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("24 products\n", 0)
