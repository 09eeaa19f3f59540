"""Pairs of neighbours, apart into two vectors and together again, for vectors of any number of lanes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from shared_kernels import DEFAULT_CXX, compile_library

SOURCE = """
#include "lib/simd/pairs.h"
using namespace minbuild;

template <int N>
static void pass(const float* x, float* apart, float* together) {
  using V = Vec<float, N>;
  of_pairs<0>(V::load(x), V::load(x + N)).store(apart), of_pairs<1>(V::load(x), V::load(x + N)).store(apart + N);
  const V first = V::load(apart), second = V::load(apart + N);
  in_pairs<0>(first, second).store(together), in_pairs<1>(first, second).store(together + N);
}
extern "C" __attribute__((visibility("default"))) void run(int lanes, const float* x, float* apart, float* together) {
  if (lanes == 1) pass<1>(x, apart, together);
  if (lanes == 2) pass<2>(x, apart, together);
  if (lanes == 4) pass<4>(x, apart, together);
  if (lanes == 8) pass<8>(x, apart, together);
}
"""


@pytest.mark.parametrize(
    "flags", [(), ("-DMB_ONE_VARIANT=1", "-DMB_SIMD=0")], ids=["vectors", "single numbers"]
)
def test_pairs_come_apart_and_together(flags: tuple[str, ...], tmp_path: Path) -> None:
    library = compile_library(tmp_path, SOURCE, DEFAULT_CXX, flags)
    for lanes in (1, 2, 4, 8):
        x = np.arange(2 * lanes, dtype=np.float32)
        apart, together = np.empty_like(x), np.empty_like(x)
        library.run(lanes, *(ctypes.c_void_p(a.ctypes.data) for a in (x, apart, together)))
        assert apart.tolist() == [*x[::2], *x[1::2]] and together.tolist() == x.tolist()
