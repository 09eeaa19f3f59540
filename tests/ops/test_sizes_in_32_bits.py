"""Sizes of convolutions whose memory cannot be counted in 32 bits are refused there, before anything is written. The
program is one for 32-bit x86, which 64-bit processors run; it brings what it needs of a C library."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import trainers

from minbuild.codegen.sources import emit_sources
from minbuild.ops import registry

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="runs programs of 32-bit x86"
)
OPTIONS = (
    *("-target", "x86-linux-musl", "-std=c++17", "-O1", "-msse2", "-nostdlib", "-static", "-fno-builtin"),
    *("-fno-sanitize=all", "-fno-exceptions", "-fno-rtti", "-fno-stack-protector"),
)
SOURCE = """
#include "lib/nn/depthwise_planes.h"
#include "lib/nn/grouped_planes.h"
#include "lib/nn/plane_conv.h"
using namespace minbuild;

struct Every {
  static constexpr bool kVolume = true, kLines = true, kStrides = true, kDilations = true, kGroups = true;
  static constexpr bool kPointwise = true, kDepthwise = true, kBias = true, kExchanged = false, kPadded = false;
  static constexpr bool kDequantize = false, kPieces = false;
  static constexpr int kParts = 0;
};

// At an address where nothing is.
template <class... Dims>
Tensor tensor(Dims... dims) {
  Tensor made = {reinterpret_cast<char*>(0x1000000), 1, int(sizeof...(dims)), {dims...}};
  for (int i = 0; i < made.rank; ++i) made.count *= made.dims[i];
  return made;
}
extern "C" void* memset(void* to, int byte, size_t size) {
  for (char* at = static_cast<char*>(to); size > 0; --size) *at++ = char(byte);
  return to;
}
bool takes(const Tensor& x, const Tensor& y, const Tensor& w, const Tensor& room) {
  %s c;
  c.propagation = kOutput;
  const int32_t params[] = {%s};
  return c.%s(x, y, w, params) && c.lay_out(tensor(1), room);
}
extern "C" __attribute__((force_align_arg_pointer)) void _start() {
  Tensor room = tensor(1 << 24);
  room.data = reinterpret_cast<char*>(0x8000000);
  const int taken = takes(%s, room);
  __asm__ volatile("int $0x80" : : "a"(1), "b"(taken));  // exit
  __builtin_unreachable();
}
"""
# Kernels, their parameters, how they are read, and x, y and w. Their memory is 2^32 bytes of planes (no batch, so that
# nothing else is large), as many of a phase and of channels, and 2^36 phases.
SIZES = {
    "depthwise": (
        "Depthwise<double>",
        "0, 1, 0, 2, 2, 0, 0, 0, 0, 1, 1",
        "read_shapes",
        "tensor(0, 1, 8192, 8192), tensor(0, 1, 8192, 8192), tensor(1, 1, 1, 1)",
    ),
    "grouped": (
        "Grouped<float>",
        "0, 1, 0, 1, 1, 0, 0, 0, 0, 128, 1",
        "read_shapes",
        "tensor(64, 1, 1, 8192), tensor(64, 1, 1, 4), tensor(1, 1, 64, 1)",
    ),
    "channels": (
        "PlaneConv<float, Every>",
        "1, 1, 1, 1, 0, 0, 0, 1, 1, 1",
        "read",
        "tensor(1, 1024, 1, 1), tensor(1, 1, 1024, 1024), tensor(1, 1024, 1, 1)",
    ),
    "phases": (
        "PlaneConv<float, Every>",
        "1, 4096, 4096, 4096, 0, 0, 0, 4095, 4095, 4095",
        "read",
        "tensor(1, 1, 1, 1, 1), tensor(1, 1, 1, 1, 1), tensor(1, 1, 2, 2, 2)",
    ),
    "few": (
        "PlaneConv<float, Every>",
        "1, 1, 1, 1, 0, 0, 0, 1, 1, 1",
        "read",
        "tensor(1, 4, 1, 1), tensor(1, 1, 1, 1), tensor(1, 4, 1, 1)",
    ),
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of a library with these kernels."""
    folder, operators = tmp_path_factory.mktemp("package"), registry()
    contents = trainers.everything_of({"conv", "grouped_conv", "depthwise_conv"}, operators)
    for name, data in emit_sources(contents, operators).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("name", SIZES)
def test_memory_that_cannot_be_counted_is_refused(package: Path, name: str) -> None:
    program = package / f"{name}.cc"
    program.write_text(SOURCE % SIZES[name])
    compiler = (sys.executable, "-m", "ziglang", "c++", *OPTIONS, f"-I{package}/include", f"-I{package}/src")
    subprocess.run([*compiler, program, "-o", program.with_suffix("")], check=True)
    done = subprocess.run([program.with_suffix("")], check=False)
    assert done.returncode == (1 if name == "few" else 0)
