"""Copies of pieces in parts, as threads share them: a part may begin and end anywhere in a row."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from shared_kernels import DEFAULT_CXX, KERNELS, compile_library

SOURCE = """
#define MB_INSTANTIATE_CONCAT
#include "ops/movement/concat.cc"
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace minbuild;

static int parts_run;
void minbuild::run_parts(Team*, int32_t members, int32_t parts, Part task, const void* work) {
  parts_run += parts;
  for (int32_t part = parts; part-- > 0;) task(work, part, part % members);
}

// One of y and x is a piece of the other that begins at a column. Returns the number of parts.
EXPORT int copy(int members, int out, int rows, int column, float* y, int y_count, const float* x, int x_count) {
  Tensor t[3] = {{reinterpret_cast<char*>(y), y_count, 1, {y_count}},
                 {reinterpret_cast<char*>(const_cast<float*>(x)), x_count, 1, {x_count}},
                 {nullptr, rows * column, 2, {rows, column}}};
  Team team = {members};
  const int32_t params[1] = {out};
  Call call = {t + Call::kMiddle, params, 0, &team};
  parts_run = 0;
  return copy_piece<float>(call) == Status::kOk ? parts_run : -1;
}
"""
LEAST_ELEMENTS = 2 * (1 << 16) // 4


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("copies")
    (folder / "minbuild").mkdir()
    (folder / "minbuild/config.h").write_text(
        "#define MB_THREADS 8\n#define MB_FUSED_UPDATES 0\n#define MB_COMPILED 0\n"
    )
    return compile_library(folder, SOURCE, DEFAULT_CXX, (f"-I{folder}", f"-I{KERNELS / 'include'}"))


@pytest.mark.parametrize("members", (1, 2, 3, 8))
@pytest.mark.parametrize(
    ("rows", "width"),
    ((1, 33_000), (3, 11_111), (40_001, 1), (257, 130), (2, LEAST_ELEMENTS // 2 - 1), (3, 100_000)),
)
def test_pieces_are_copied_in_parts_that_cover_them(
    library: ctypes.CDLL, members: int, rows: int, width: int
) -> None:
    stride, column = width + 5, 3
    piece = np.arange(1, rows * width + 1, dtype=np.float32).reshape(rows, width)
    whole = np.zeros((rows, stride), np.float32)
    expected = whole.copy()
    expected[:, column : column + width] = piece
    parts = library.copy(members, 0, rows, column, *argument(whole), *argument(piece))
    assert np.array_equal(whole, expected)
    back = np.zeros_like(piece)
    assert library.copy(members, 1, rows, column, *argument(back), *argument(whole)) == parts
    assert np.array_equal(back, piece)
    # One part for each member, two of large pieces.
    divided = members > 1 and piece.size >= LEAST_ELEMENTS
    assert parts == (members * (2 if piece.size >= members * LEAST_ELEMENTS else 1) if divided else 0)


def argument(array: np.ndarray) -> tuple[ctypes.c_void_p, int]:
    return ctypes.c_void_p(array.ctypes.data), array.size
