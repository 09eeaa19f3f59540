"""kernels/shared: the matrix product and the vector mathematics against float64."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from shared_kernels import DEFAULT_CXX, GCC_CXX, compile_gemm, gemm_arguments

WIDE = ("-DWITH_DOUBLE", "-DMINBUILD_AVX512=1")
BUILDS = {
    "clang": (DEFAULT_CXX, WIDE),
    "clang-one-level": (DEFAULT_CXX, ("-DWITH_DOUBLE", "-DMINBUILD_DISPATCH=0")),
    "clang-small-stack": (DEFAULT_CXX, ("-DWITH_DOUBLE", "-DMINBUILD_SMALL_STACK=1")),
    "gcc": (GCC_CXX, WIDE),
}


@pytest.fixture(scope="module", params=BUILDS)
def gemm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """The compiled product, once per compiler and switch."""
    cxx, flags = BUILDS[request.param]
    if cxx is GCC_CXX and not shutil.which("g++"):
        pytest.skip("no g++")
    return compile_gemm(tmp_path_factory.mktemp("gemm"), cxx, flags)


def widths(library) -> list[int]:
    """The vector widths in bytes that this processor and build can run."""
    library.set_width(0)
    found = library.width()
    return [bytes_ for bytes_ in (16, 32, 64) if bytes_ <= found]


def guarded(shape: tuple[int, int], transposed: bool, dtype: type, random: np.random.Generator) -> np.ndarray:
    """A view with padded rows inside a block of NaN: reading outside spoils the result."""
    rows, columns = shape[::-1] if transposed else shape
    block = np.full((rows + 2, columns + 3), np.nan, dtype)
    view = block[1 : rows + 1, 2 : columns + 2]
    view[:] = random.standard_normal(view.shape)
    return view.T if transposed else view


def check(library, m: int, n: int, k: int, layout: str, dtype: type, alpha: float, accumulate: bool) -> np.ndarray:
    """Runs one product and compares with float64; the surroundings of C must stay as they were. Returns C."""
    random = np.random.default_rng(m * 7919 + n * 104729 + k)
    a = guarded((m, k), layout[0] == "T", dtype, random)
    b = guarded((k, n), layout[1] == "T", dtype, random)
    c = guarded((m, n), layout[2] == "T", dtype, random)
    expected = alpha * (a.astype(np.float64) @ b.astype(np.float64)) + (c if accumulate else 0)
    scale = abs(alpha) * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)) + np.abs(c) + 1e-30
    if not accumulate:
        c[:] = np.nan
    surroundings = c.base if c.base is not None else c
    outside = np.isnan(surroundings).sum() - np.isnan(c).sum()
    run = library.gemm_float if dtype is np.float32 else library.gemm_double
    run(1, *gemm_arguments(a, b, c, alpha, accumulate))
    np.testing.assert_array_less(np.abs(c - expected) / scale, (k + 3) * np.finfo(dtype).eps)
    assert np.isnan(surroundings).sum() == outside
    return c


LAYOUTS = ["".join(x) for x in product("NT", repeat=3)]
SIZES = [(1, 1, 1), (1, 7, 5), (1, 130, 67), (7, 1, 33), (3, 5, 2), (4, 16, 8), (9, 33, 70), (8, 32, 300), (33, 10, 128)]
SIZES += [(17, 49, 65), (40, 3, 20), (70, 31, 257), (5, 66, 600)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_product_matches_float64(gemm, layout: str) -> None:
    for bytes_ in widths(gemm):
        gemm.set_width(bytes_)
        for m, n, k in SIZES:
            check(gemm, m, n, k, layout, np.float32, 1.0, False)
            check(gemm, m, n, k, layout, np.float32, 0.5, True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_product_of_doubles(gemm, layout: str) -> None:
    for bytes_ in widths(gemm):
        gemm.set_width(bytes_)
        for m, n, k in SIZES[::2]:
            check(gemm, m, n, k, layout, np.float64, -1.5, bool(m % 2))


def test_every_small_size(gemm) -> None:
    for bytes_ in widths(gemm):
        gemm.set_width(bytes_)
        for m, n, k in product(range(1, 10), (1, 2, 4, 7, 8, 15, 17, 32, 35), (1, 3, 8, 9)):
            check(gemm, m, n, k, "NTN", np.float32, 1.0, False)
            check(gemm, m, n, k, "TNN", np.float32, 1.0, True)


@pytest.mark.parametrize("layout", ["NNN", "NTN"])
def test_empty_depth_gives_zeros_or_keeps(gemm, layout: str) -> None:
    for bytes_ in widths(gemm):
        gemm.set_width(bytes_)
        for m, n in ((1, 1), (5, 1), (1, 40), (9, 70)):
            assert not check(gemm, m, n, 0, layout, np.float32, 1.0, False).any()
            check(gemm, m, n, 0, layout, np.float32, 1.0, True)
    for m, n in ((0, 3), (3, 0)):
        check(gemm, m, n, 4, layout, np.float32, 1.0, False)


def test_scattered_strides(gemm) -> None:
    """Neither dimension contiguous, as in a strided pointwise convolution."""
    random = np.random.default_rng(5)
    a, b = (random.standard_normal((60, 80), dtype=np.float32) for _ in "ab")
    left, right = a[::3, ::2], b.T[::2, ::3]
    c = np.zeros((40, 60), np.float32)[::2, ::3]
    for bytes_ in widths(gemm):
        gemm.set_width(bytes_)
        gemm.gemm_float(1, *gemm_arguments(left, right, c, 1.0, False))
        np.testing.assert_allclose(c, left.astype(float) @ right, rtol=1e-4, atol=1e-4)


def test_same_bits_wherever_the_data_lies(gemm) -> None:
    """The result depends on values and shape only, not on addresses or on padding between rows."""
    random = np.random.default_rng(3)
    for layout in ("NNN", "NTN", "TNN"):
        results = []
        for offset in range(3):
            a = np.zeros((40, 140), np.float32)[:37, offset : offset + 130]
            b = np.zeros((140, 90), np.float32)[offset : offset + 130, offset : offset + 70]
            random = np.random.default_rng(3)
            a[:], b[:] = random.standard_normal(a.shape), random.standard_normal(b.shape)
            left = np.asfortranarray(a) if layout[0] == "T" else a
            right = np.asfortranarray(b) if layout[1] == "T" else b
            c = np.empty((37, 70), np.float32)
            gemm.gemm_float(1, *gemm_arguments(left, right, c, 1.0, False))
            results.append(c.tobytes())
        assert len(set(results)) == 1, layout
