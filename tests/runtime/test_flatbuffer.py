"""kernels/runtime/flatbuffer.h on its own: every load at every place of a buffer, with other bytes on both sides."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from shared_kernels import DEFAULT_CXX, compile_library

SOURCE = """
#include "runtime/flatbuffer.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace minbuild;
using Bytes = const void*;
using u32 = uint32_t;
static Flatbuffer file(Bytes bytes, u32 size) { return {static_cast<const uint8_t*>(bytes), size}; }
EXPORT uint64_t load(Bytes b, u32 size, u32 at, u32 bytes) { return file(b, size).load(at, bytes); }
EXPORT u32 root(Bytes b, u32 size) { return file(b, size).root("MBTR"); }
EXPORT u32 field(Bytes b, u32 size, u32 table, u32 slot) { return file(b, size).field(table, slot); }
EXPORT u32 child(Bytes b, u32 size, u32 table, u32 slot) { return file(b, size).child(table, slot); }
EXPORT int64_t vector(Bytes b, u32 size, u32 table, u32 slot, u32 stride, u32* count) {
  Vector found = file(b, size).vector(table, slot, stride);
  *count = found.count;
  return found.data == nullptr ? -1 : found.data - static_cast<const uint8_t*>(b);
}
EXPORT int equals(Bytes bytes, u32 count, const char* text) {
  return Vector{static_cast<const uint8_t*>(bytes), count}.equals(text);
}
"""
NOWHERE = 2**32 - 1
SIZE = 64


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("flatbuffer")
    library = compile_library(folder, SOURCE, DEFAULT_CXX)
    library.load.restype, library.vector.restype = ctypes.c_uint64, ctypes.c_int64
    for name in ("root", "field", "child"):
        getattr(library, name).restype = ctypes.c_uint32
    return library


class Buffer:
    """Bytes 1, 2, 3, ... or what is put there, and after them 0xEE."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.bytes = (ctypes.c_uint8 * (size + 64))(*range(1, size + 1), *[0xEE] * 64)

    def put(self, at: int, value: int, width: int) -> None:
        self.bytes[at : at + width] = list(value.to_bytes(width, "little"))

    def table(self, at: int, offsets: list[int], vtable: int = 16) -> None:
        """A table at `at` whose fields are `offsets` further on; its virtual table is at `vtable`."""
        self.put(at, (at - vtable) % 2**32, 4)
        for place, value in enumerate((4 + 2 * len(offsets), 8, *offsets)):
            self.put(vtable + 2 * place, value, 2)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_a_load_is_inside_or_zero(reader: ctypes.CDLL, width: int) -> None:
    buffer = Buffer()
    for at in [*range(SIZE + 20), 2**31, 2**32 - 8, 2**32 - 4, 2**32 - 1]:
        inside = at + width <= SIZE
        wanted = int.from_bytes(bytes(buffer.bytes[at : at + width]), "little") if inside else 0
        assert reader.load(buffer.bytes, SIZE, ctypes.c_uint32(at), width) == wanted, at


def test_the_root_has_the_identifier(reader: ctypes.CDLL) -> None:
    buffer = Buffer()
    buffer.put(0, 40, 4)
    assert reader.root(buffer.bytes, SIZE) == NOWHERE
    for at, letter in enumerate(b"MBTR"):
        buffer.put(4 + at, letter, 1)
    assert reader.root(buffer.bytes, SIZE) == 40
    for short in (0, 3, 7):
        assert reader.root(buffer.bytes, short) == NOWHERE


def test_fields_are_those_of_the_virtual_table(reader: ctypes.CDLL) -> None:
    buffer = Buffer()
    buffer.table(32, [4, 0, 8])  # slots 4, 6, 8
    found = [reader.field(buffer.bytes, SIZE, 32, slot) for slot in (4, 6, 8, 10, 12)]
    assert found == [36, NOWHERE, 40, NOWHERE, NOWHERE]
    assert reader.field(buffer.bytes, SIZE, ctypes.c_uint32(NOWHERE), 4) == NOWHERE
    buffer.put(36, 12, 4)
    assert reader.child(buffer.bytes, SIZE, 32, 4) == 48


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_a_vector_ends_inside_or_is_none(reader: ctypes.CDLL, stride: int) -> None:
    buffer, count = Buffer(), ctypes.c_uint32()
    buffer.table(24, [4])
    buffer.put(28, 12, 4)  # the vector is at 40, its elements at 44
    most = (SIZE - 44) // stride
    for elements in (0, 1, most - 1, most, most + 1, 2**28, 2**29, 2**30, 2**31, 2**32 - 4, 2**32 - 1):
        buffer.put(40, elements, 4)
        at = reader.vector(buffer.bytes, SIZE, 24, 4, stride, ctypes.byref(count))
        assert (at, count.value) == ((44, elements) if elements <= most else (-1, 0)), elements
    buffer.put(40, 1, 4)
    for size in range(41, 44 + stride + 2):
        at = reader.vector(buffer.bytes, size, 24, 4, stride, ctypes.byref(count))
        assert at == (44 if size >= 44 + stride else -1), size


def test_vectors_lie_as_their_elements_need(reader: ctypes.CDLL) -> None:
    count = ctypes.c_uint32()
    for stride, needed in ((1, 1), (2, 2), (4, 4), (8, 4)):
        for off in range(8):
            buffer = Buffer()
            buffer.table(24, [4])
            buffer.put(28, 8 + off, 4)  # at 36 + off
            buffer.put(36 + off, 1, 4)
            at = reader.vector(buffer.bytes, SIZE, 24, 4, stride, ctypes.byref(count))
            assert at == (40 + off if off % needed == 0 else -1), (stride, off)


def test_what_is_absent_is_no_vector(reader: ctypes.CDLL) -> None:
    buffer, count = Buffer(), ctypes.c_uint32(7)
    buffer.table(24, [0])
    assert reader.vector(buffer.bytes, SIZE, 24, 4, 1, ctypes.byref(count)) == -1 and count.value == 0


def test_texts_are_equal_to_the_end(reader: ctypes.CDLL) -> None:
    for bytes_, text, same in (
        *((b"name", b"name", True), (b"name", b"nam", False), (b"nam", b"name", False), (b"", b"", True)),
        *((b"", b"n", False), (b"namf", b"name", False), (b"\xe9", b"\xe9", True), (b"a\0b", b"a", False)),
    ):
        assert bool(reader.equals(bytes_, len(bytes_), text)) == same, (bytes_, text)
