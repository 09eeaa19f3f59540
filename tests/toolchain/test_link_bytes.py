"""Libraries that would import memcpy and memset alone bring their own."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from minbuild.formats import elf
from minbuild.toolchain import build_library, find_toolchain, host_target, parse_target

SOURCES = {
    "src/session.cc": b"""
#include <string.h>
#define API extern "C" __attribute__((visibility("default")))
API void mb_copy(void* to, const void* from, size_t size) { memcpy(to, from, size); }
API void mb_fill(void* at, int value, size_t size) { memset(at, value, size); }
"""
}
CALLER = {
    "src/session.cc": SOURCES["src/session.cc"]
    + b"API int mb_same(int* a) { return memcmp(a, a + 1, *a); }\n"
}


@pytest.mark.parametrize("name", ["x86_64-linux-gnu", "aarch64-linux-musl", "riscv64-linux-gnu"])
def test_nothing_is_imported(name: str) -> None:
    built = build_library(SOURCES, parse_target(name), find_toolchain())
    symbols = elf.parse("library", built.shared).symbols(elf.DYNSYM)
    assert sorted(s.name for s in symbols) == ["mb_copy", "mb_fill"] and b"libc.so" not in built.shared
    assert b"memcpy" in built.unstripped and b"memcpy" not in built.shared
    members = built.archive.split(b"/")
    assert not any(b"bytes.o" in member for member in members), "programs have a memcpy"


def test_what_is_imported_anyway_comes_from_the_c_library() -> None:
    built = build_library(CALLER, parse_target("aarch64-linux-gnu"), find_toolchain())
    symbols = elf.parse("library", built.shared).symbols(elf.DYNSYM)
    assert {s.name for s in symbols if not s.defined} == {"memcpy", "memset", "memcmp"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="runs what it builds for Linux")
def test_bytes_are_copied_and_filled_at_every_address(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(build_library(SOURCES, host_target(), find_toolchain()).shared)
    library = ctypes.CDLL(str(path))
    source = bytes(range(1, 101))
    given = ctypes.create_string_buffer(source)
    for start in range(9):
        for size in (*range(40), 64, 91):
            for offset in (0, start):
                room = ctypes.create_string_buffer(128)
                to = ctypes.c_void_p(ctypes.addressof(room) + start)
                library.mb_copy(to, ctypes.c_void_p(ctypes.addressof(given) + offset), ctypes.c_size_t(size))
                copied = source[offset : offset + size]
                assert room.raw == bytes(start) + copied + bytes(128 - start - size)
            library.mb_fill(to, 0x3A5, ctypes.c_size_t(size))
            assert room.raw == bytes(start) + b"\xa5" * size + bytes(128 - start - size)
