"""kernels/lib: the matrix product and the vector mathematics against float64."""

from __future__ import annotations

import ctypes
import math
import shutil
import time
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from shared_kernels import DEFAULT_CXX, GCC_CXX, apply, compile_gemm, compile_math, gemm_arguments

WIDE = ("-DWITH_DOUBLE", "-DMINBUILD_AVX512=1")
BUILDS = {
    "clang": (DEFAULT_CXX, WIDE),
    "clang-one-level": (DEFAULT_CXX, ("-DWITH_DOUBLE", "-DMINBUILD_DISPATCH=0")),
    "clang-microcontroller": (
        DEFAULT_CXX,
        ("-DWITH_DOUBLE", "-DMINBUILD_SMALL_STACK=1", "-DMINBUILD_DISPATCH=0", "-DMB_SIMD=0"),
    ),
    "clang-one-variant": (DEFAULT_CXX, ("-DWITH_DOUBLE", "-DMB_ONE_VARIANT=1")),
    "clang-one-variant-microcontroller": (
        DEFAULT_CXX,
        ("-DWITH_DOUBLE", "-DMB_ONE_VARIANT=1", "-DMINBUILD_SMALL_STACK=1", "-DMB_SIMD=0"),
    ),
    # Vectors of 64 bytes by what instructions there are: the same sums as with AVX-512, on any processor.
    "clang-64-bytes": (DEFAULT_CXX, (*WIDE, "-DMINBUILD_DISPATCH=0", "-D__AVX512F__=1")),
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
    return [bytes_ for bytes_ in (4, 16, 32, 64) if bytes_ <= found and (bytes_ > 4 or found == 4)]


def guarded(shape: tuple[int, int], transposed: bool, dtype: type, random: np.random.Generator) -> np.ndarray:
    """A view with padded rows inside a block of NaN: reading outside spoils the result."""
    rows, columns = shape[::-1] if transposed else shape
    block = np.full((rows + 2, columns + 3), np.nan, dtype)
    view = block[1 : rows + 1, 2 : columns + 2]
    view[:] = random.standard_normal(view.shape)
    return view.T if transposed else view


def check(
    library,
    m: int,
    n: int,
    k: int,
    layout: str,
    dtype: type,
    alpha: float,
    accumulate: bool,
    name: str = "gemm",
) -> np.ndarray:
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
    run = getattr(library, f"{name}_{'float' if dtype is np.float32 else 'double'}")
    run(1, *gemm_arguments(a, b, c, alpha, accumulate))
    np.testing.assert_array_less(np.abs(c - expected) / scale, (k + 3) * np.finfo(dtype).eps)
    assert np.isnan(surroundings).sum() == outside
    return c


LAYOUTS = ["".join(x) for x in product("NT", repeat=3)]
SIZES = [(1, 1, 1), (1, 7, 5), (1, 130, 67), (7, 1, 33), (3, 5, 2), (4, 16, 8), (9, 33, 70)]
SIZES += [(8, 32, 300), (33, 10, 128), (17, 49, 65), (40, 3, 20), (70, 31, 257), (5, 66, 600)]


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


PACKED_SIZES = [
    (16, 16, 1),
    (17, 19, 65),
    (37, 49, 129),
    (130, 70, 300),
    (129, 531, 66),
    (1, 290, 40),
    (2, 67, 261),
    (3, 101, 29),
    (9, 290, 40),
    (6, 71, 1031),
    (21, 163, 203),
    (33, 17, 1100),
    (5, 1033, 1031),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_product_matches_float64(gemm, layout: str) -> None:
    """By blocks of rows, columns and depth, in every order and with every remainder."""
    for bytes_ in widths(gemm):
        gemm.set_width(bytes_)
        for m, n, k in PACKED_SIZES:
            check(gemm, m, n, k, layout, np.float32, 1.0, False, "gemm_packed")
            check(gemm, m, n, k, layout, np.float32, 0.5, True, "gemm_packed")
        check(gemm, 37, 70, 270, layout, np.float64, -1.5, True, "gemm_packed")


def test_packing_changes_no_bit(gemm) -> None:
    """Packed blocks are added in the order of the panels of the plain product."""
    random = np.random.default_rng(2)
    a = random.standard_normal((61, 700), dtype=np.float32)
    b = random.standard_normal((700, 83), dtype=np.float32)
    for bytes_ in widths(gemm):
        gemm.set_width(bytes_)
        found = []
        for name in ("gemm_float", "gemm_packed_float"):
            c = np.empty((61, 83), np.float32)
            getattr(gemm, name)(1, *gemm_arguments(a, b, c, 1.0, False))
            found.append(c.tobytes())
        assert found[0] == found[1]


def test_own_packer(gemm) -> None:
    """A strided, padded convolution in one dimension through a packer of its own."""
    random = np.random.default_rng(9)
    filters = random.standard_normal((11, 3), dtype=np.float32)
    for size in (1, 2, 37, 200):
        image = random.standard_normal(size, dtype=np.float32)
        padded = np.concatenate([[0], image, [0, 0]])
        count = (size + 1) // 2
        patches = np.stack([padded[2 * j : 2 * j + 3] for j in range(count)], axis=1)
        for bytes_ in widths(gemm):
            gemm.set_width(bytes_)
            c = np.full((11, count), np.nan, np.float32)
            pointers = [ctypes.c_void_p(x.ctypes.data) for x in (filters, image, c)]
            gemm.convolve(11, count, pointers[0], pointers[1], size, pointers[2])
            np.testing.assert_allclose(c, filters.astype(float) @ patches, rtol=1e-5, atol=1e-5)


MATH_BUILDS = {
    "clang": (DEFAULT_CXX, ()),
    "clang-one-level": (DEFAULT_CXX, ("-DMINBUILD_DISPATCH=0",)),
    "gcc": (GCC_CXX, ()),
}
# Largest error allowed, in units of the last place.
ULPS = {
    np.float32: {"exp": 1.0, "log": 1.0, "tanh": 2.0, "erf": 2.0, "sigmoid": 3.0, "sqrt": 0.5},
    np.float64: {"exp": 2.0, "log": 2.0, "tanh": 4.0, "erf": 5.0, "sigmoid": 2.0, "sqrt": 0.5},
}


@pytest.fixture(scope="module", params=MATH_BUILDS)
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """The compiled vector functions, once per compiler and switch."""
    cxx, flags = MATH_BUILDS[request.param]
    if cxx is GCC_CXX and not shutil.which("g++"):
        pytest.skip("no g++")
    return compile_math(tmp_path_factory.mktemp("math"), cxx, flags)


def errors_in_ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|got - want| in units of the last place; 0 where both are the same infinity or NaN."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        distance = np.abs(got.astype(np.longdouble) - want) / np.spacing(np.abs(rounded))
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(same, 0, np.nan_to_num(distance, nan=np.inf))


def reference(name: str, x: np.ndarray) -> np.ndarray:
    """The function in extended precision (erf: float64)."""
    x = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        if name == "erf":
            return np.array([math.erf(float(v)) for v in x], np.longdouble)
        if name == "sigmoid":
            e = np.exp(-np.abs(x))
            return np.where(x < 0, e, 1) / (1 + e)
        return getattr(np, name)(x)


def samples(dtype: type, name: str) -> np.ndarray:
    """Values over every scale, with the special ones; sizes that leave a tail."""
    random = np.random.default_rng(11)
    top = 110 if dtype is np.float32 else 760
    tiny = np.finfo(dtype).tiny
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, tiny, tiny / 8, -tiny, 1.0, -1.0]
    special += [88.7, 88.73, -87.3, -103.9, 0.625]
    linear, logarithmic = random.uniform(-top, top, 4001), np.exp(random.uniform(-80, 80, 4001))
    x = np.concatenate(
        [linear, logarithmic, random.normal(0, 1, 4001), random.normal(0, 1e-3, 1001), special]
    ).astype(dtype)
    return np.concatenate([np.abs(x), special]).astype(dtype) if name in ("log", "sqrt") else x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sigmoid", "sqrt"])
def test_functions_are_accurate(functions, name: str, dtype: type) -> None:
    x = samples(dtype, name)
    want = reference(name, x)
    for bytes_ in widths(functions):
        functions.set_width(bytes_)
        got = apply(functions, name, x)
        errors = errors_in_ulps(got, want)
        worst = errors.argmax()
        assert errors[worst] <= ULPS[dtype][name], (bytes_, x[worst], got[worst], want[worst])


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_odd_functions_keep_the_sign_of_zero(functions, name: str) -> None:
    got = apply(functions, name, np.array([0.0, -0.0], np.float32))
    assert np.signbit(got).tolist() == [False, True]


def test_a_value_gives_the_same_bits_in_every_lane(functions) -> None:
    x = np.random.default_rng(2).normal(0, 3, 64).astype(np.float32)
    for name in ("exp", "tanh", "erf", "sigmoid"):
        whole = apply(functions, name, x)
        for shift in (1, 3, 5):
            assert np.array_equal(apply(functions, name, x[shift:].copy()), whole[shift:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pow_is_accurate(functions, dtype: type) -> None:
    random = np.random.default_rng(4)
    x = np.exp(random.uniform(-20, 20, 3001)).astype(dtype)
    for exponent in (2.0, 3.0, 0.5, -0.5, -1.0, 1.5, 1 / 3, -2.2, 4.0, 0.1):
        y = np.full_like(x, exponent)
        want = x.astype(np.longdouble) ** y.astype(np.longdouble)
        for bytes_ in widths(functions):
            functions.set_width(bytes_)
            errors = errors_in_ulps(apply(functions, "pow", x, y), want)
            worst = errors.argmax()
            assert errors[worst] <= 4, (bytes_, x[worst], exponent, errors[worst])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pow_of_special_values(functions, dtype: type) -> None:
    """Every pair of special bases and exponents as in C (numpy calls the C library)."""
    top = 200.0 if dtype is np.float32 else 2000.0
    bases = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1.5, -3.0, np.inf, -np.inf, np.nan, 1e-40, 3e38]
    powers = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5]
    powers += [top, -top, top + 1, 1e9, -1e9, 16777217.0, 1e30, np.inf, -np.inf, np.nan]
    pairs = np.array(list(product(bases, powers)), dtype)
    x, y = pairs[:, 0].copy(), pairs[:, 1].copy()
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.longdouble)
    for bytes_ in widths(functions):
        functions.set_width(bytes_)
        got = apply(functions, "pow", x, y)
        errors = errors_in_ulps(got, want)
        allowed = np.where(np.abs(y) > 4, np.abs(y) + 4, 4)
        assert not [(x[i], y[i], got[i], want[i]) for i in np.flatnonzero(errors > allowed)]
        sure = ~np.isnan(want)
        assert np.array_equal(np.signbit(got[sure]), np.signbit(want[sure]))


def test_tiles_serve_the_wide_vectors(gemm) -> None:
    """Narrow ones are a fallback, row by row and several times slower: were it the other way round, no bit would
    show it."""
    wide = max(widths(gemm))
    gemm.set_width(16)
    if gemm.width() != 16 or wide < 32:
        pytest.skip("one width here")
    a, b, c = (np.ones((192, 192), np.float32) for _ in range(3))
    best = {16: math.inf, wide: math.inf}
    for bytes_ in list(best) * 7:
        gemm.set_width(bytes_)
        began = time.perf_counter()
        gemm.gemm_float(1, *gemm_arguments(a, b, c, 1.0, False))
        best[bytes_] = min(best[bytes_], time.perf_counter() - began)
    assert best[16] > 1.5 * best[wide], best
