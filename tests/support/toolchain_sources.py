"""A small library with a kernel, a session and a program, and what tests ask of its ELF file: shared by tests."""

from __future__ import annotations

import ctypes
import shutil
import struct
import sys
from pathlib import Path

import pytest

from minbuild.toolchain import (
    Target,
)

API = b"""
#include <stddef.h>
#include <stdint.h>
#define MB_API __attribute__((visibility("default")))
#ifdef __cplusplus
extern "C" {
#endif
MB_API uint8_t mb_run(int op, float* y, const float* a, const float* b, int n);
MB_API uint8_t mb_save(const char* path, const void* bytes, size_t size);
MB_API uint64_t mb_divide(uint64_t a, uint64_t b);
#ifdef __cplusplus
}
#endif
"""


KERNEL = b"""
#include "minbuild/api.h"
namespace minbuild {
struct Call { float* y; const float* a; const float* b; int n; };
template <class T> uint8_t gemm(const Call& call);
template <class T> uint8_t relu(const Call& call);
}
"""


GEMM = b"""
#include "kernel.h"
namespace minbuild {
template <class T> uint8_t gemm(const Call& c) {
  for (int i = 0; i < c.n; ++i)
    for (int j = 0; j < c.n; ++j) {
      T sum = 0;
      for (int k = 0; k < c.n; ++k) sum += c.a[i * c.n + k] * c.b[k * c.n + j];
      c.y[i * c.n + j] = sum;
    }
  return 0;
}
template uint8_t gemm<float>(const Call&);
template uint8_t gemm<double>(const Call&);
}
"""


RELU = b"""
#include "kernel.h"
namespace minbuild {
template <class T> uint8_t relu(const Call& c) {
  for (int i = 0; i < c.n; ++i) c.y[i] = c.a[i] > 0 ? c.a[i] : 0;
  return 0;
}
template uint8_t relu<float>(const Call&);
}
"""


SESSION = b"""
#include "kernel.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
using namespace minbuild;
static uint8_t (*const kTable[])(const Call&) = {gemm<float>, relu<float>};
uint8_t mb_run(int op, float* y, const float* a, const float* b, int n) {
  if (op < 0 || op > 1) return 1;
  memset(y, 0, n * sizeof(float));
  return kTable[op]({y, a, b, n});
}
uint8_t mb_save(const char* path, const void* bytes, size_t size) {
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) return 8;
  bool whole = write(file, bytes, size) == static_cast<ssize_t>(size);
  return close(file) == 0 && whole ? 0 : 8;
}
uint64_t mb_divide(uint64_t a, uint64_t b) { return a / b; }
"""


SOURCES = {
    "include/minbuild/api.h": API,
    "src/kernel.h": KERNEL,
    "src/kernels/gemm.cc": GEMM,
    "src/kernels/relu.cc": RELU,
    "src/session.cc": SESSION,
}


PROGRAM = b"""
#include <stdio.h>
#include "minbuild/api.h"
int main(void) {
  float a[4] = {1, -2, 3, 4}, b[4] = {1, 2, 3, 5}, y[4];
  int status = mb_run(0, y, a, b, 2);
  printf("%d %g %g %g %g %d\\n", status, y[0], y[1], y[2], y[3], (int)mb_divide(1ull << 40, 1u << 30));
  return mb_save("saved", y, sizeof y);
}
"""


ANSWER = b"0 -5 -8 15 26 1024\n"


HOST = Target("x86_64-linux-gnu")


GXX = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


def elf64(data: bytes) -> tuple[list[tuple[int, ...]], dict[str, bytes], list[tuple[str, bool]]]:
    """Program headers (type, flags, offset, vaddr, paddr, filesz, memsz, align), sections by name, dynamic
    symbols (name, defined) of a 64-bit file."""
    phoff, shoff = struct.unpack_from("<QQ", data, 32)
    phnum, _, shnum, shstr = struct.unpack_from("<HHHH", data, 56)
    programs = [struct.unpack_from("<IIQQQQQQ", data, phoff + 56 * i) for i in range(phnum)]
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, shoff + 64 * i) for i in range(shnum)]
    names = data[headers[shstr][4] : headers[shstr][4] + headers[shstr][5]]
    sections = {
        names[h[0] : names.index(b"\0", h[0])].decode(): b"" if h[1] == 8 else data[h[4] : h[4] + h[5]]
        for h in headers
    }
    strings, table = sections[".dynstr"], sections[".dynsym"]
    rows = [struct.unpack_from("<IBBHQQ", table, at) for at in range(24, len(table), 24)]
    symbols = [(strings[r[0] : strings.index(b"\0", r[0])].decode(), r[3] != 0) for r in rows]
    return programs, sections, symbols


def call_library(shared: bytes, folder: Path) -> None:
    path = folder / "libminbuild.so"
    path.write_bytes(shared)
    library = ctypes.CDLL(str(path))
    y, a, b = (ctypes.c_float * 4)(), (ctypes.c_float * 4)(1, -2, 3, 4), (ctypes.c_float * 4)(1, 2, 3, 5)
    assert library.mb_run(0, y, a, b, 2) == 0 and list(y) == [-5, -8, 15, 26]
    assert library.mb_run(1, y, a, b, 4) == 0 and list(y) == [1, 0, 3, 4]
    assert library.mb_save(str(folder / "saved").encode(), b"four", ctypes.c_size_t(4)) == 0
    assert (folder / "saved").read_bytes() == b"four"
    library.mb_divide.restype = ctypes.c_uint64
    assert library.mb_divide(ctypes.c_uint64(1 << 40), ctypes.c_uint64(3)) == (1 << 40) // 3


on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="runs what it builds for Linux")
