"""kernels/runtime/memops.c: memcpy and memset of libraries that import nothing, at every address and size."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest
from places import ROOT
from programs import CC, run

SOURCE = f"""
#define API __attribute__((visibility("default")))
#include "{ROOT}/kernels/runtime/memops.c"
API void* copy(void* to, const void* from, size_t n) {{ return memcpy(to, from, n); }}
API void* fill(void* at, int value, size_t n) {{ return memset(at, value, n); }}
"""


@pytest.fixture(scope="module", params=["zig -O2", "gcc -O2", "gcc -O3"])
def library(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> ctypes.CDLL:
    """Compiled by compilers that make calls of memcpy and memset of loops: within these functions, endless ones."""
    name, level = request.param.split()
    if name == "gcc" and not shutil.which("gcc"):
        pytest.skip("needs gcc")
    compiler = CC if name == "zig" else ("gcc",)
    folder: Path = tmp_path_factory.mktemp("memops")
    (folder / "memops.c").write_text(SOURCE)
    # Words at other addresses than their own end the process: some processors have no such loads.
    strict = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
    run(*compiler, level, *strict, "-shared", "-fPIC", "memops.c", "-o", "memops.so", cwd=folder)
    loaded = ctypes.CDLL(str(folder / "memops.so"))
    for function in (loaded.copy, loaded.fill):
        function.restype = ctypes.c_void_p
    return loaded


@pytest.mark.parametrize("offset", range(16))
def test_bytes_are_copied_and_filled_and_no_others(library: ctypes.CDLL, offset: int) -> None:
    source = (ctypes.c_uint8 * 128)(*range(100, 228))
    for at in (0, 1, 4, 8, offset):
        for size in (*range(41), 63, 64, 65, 95):
            target = (ctypes.c_uint8 * 128)(*[7] * 128)
            to, where = ctypes.addressof(target) + offset, ctypes.addressof(source) + at
            assert library.copy(ctypes.c_void_p(to), ctypes.c_void_p(where), ctypes.c_size_t(size)) == to
            wanted = bytes([7] * offset) + bytes(source[at : at + size]) + bytes([7] * (128 - offset - size))
            assert bytes(target) == wanted, (offset, at, size)
    for value in (0, 1, 255, -1, 0x1234):
        for size in (*range(41), 64, 95):
            target = (ctypes.c_uint8 * 128)(*[7] * 128)
            to = ctypes.addressof(target) + offset
            assert library.fill(ctypes.c_void_p(to), value, ctypes.c_size_t(size)) == to
            wanted = bytes([7] * offset) + bytes([value & 255] * size) + bytes([7] * (128 - offset - size))
            assert bytes(target) == wanted, (offset, value, size)
