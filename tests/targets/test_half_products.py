"""Products of halves by the instructions of aarch64, under an emulator: the bits of the numpy model of their roundings.
A processor without the instructions computes the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]

from half_products import native_product  # noqa: E402
from shared_kernels import KERNELS  # noqa: E402

from minbuild.toolchain import find_emulator, parse_target  # noqa: E402

pytestmark = pytest.mark.targets

SIZES = ((8, 16, 16), (1, 1, 1), (17, 31, 130), (24, 70, 301))

CONFIG = {"THREADS": 1, "FUSED_UPDATES": 0, "COMPILED": 0}

# Reads a and b, each of bits, and writes the products, for every order of their elements in memory.
SOURCE = """
#include "lib/types/bytes.h"
#include "lib/gemm/half_gemm.h"
#include <stdio.h>
using namespace minbuild;

template <class T>
void multiply(int m, int n, int k, FILE* from) {
  static T a[1 << 15], b[1 << 15], a_t[1 << 15], b_t[1 << 15];
  if (fread(a, 2, m * k, from) + fread(b, 2, k * n, from) != size_t(m * k + k * n)) return;
  for (int i = 0; i < m; ++i) for (int j = 0; j < k; ++j) a_t[j * m + i] = a[i * k + j];
  for (int i = 0; i < k; ++i) for (int j = 0; j < n; ++j) b_t[j * k + i] = b[i * n + j];
  static float c[1 << 15];
  for (int order = 0; order < 4; ++order) {
    const bool ta = order & 1, tb = order & 2;
    gemm(HalfGemm<T>{m, n, k, ta ? a_t : a, ta ? 1 : k, ta ? m : 1, tb ? b_t : b, tb ? 1 : n, tb ? k : 1, c, n, 1, 1,
                     false});
    fwrite(c, 4, m * n, stdout);
  }
}

int main(int, char** words) {
  FILE* from = fopen(words[1], "rb");
  fprintf(stderr, "%d %d", int(HalfTile<half>::kNative), int(HalfTile<bfloat16>::kNative));
  const int sizes[][3] = {SIZES};
  for (auto& s : sizes) multiply<half>(s[0], s[1], s[2], from), multiply<bfloat16>(s[0], s[1], s[2], from);
}
"""


@pytest.mark.parametrize(
    ("processor", "native"),
    [("generic+fullfp16+bf16", "1 1"), ("cortex_a76", "1 0"), ("generic", "0 0")],
)
def test_products_have_the_bits_of_the_model(tmp_path: Path, processor: str, native: str) -> None:
    emulator = find_emulator(parse_target("aarch64-linux-musl"))
    if emulator is None:
        pytest.skip("no qemu-aarch64 here")
    sizes = ", ".join("{{{}, {}, {}}}".format(*size) for size in SIZES)
    (tmp_path / "unit.cc").write_text(SOURCE.replace("SIZES", sizes))
    (tmp_path / "minbuild").mkdir()
    (tmp_path / "minbuild" / "config.h").write_text(
        "".join(f"#define MB_{name} {value}\n" for name, value in CONFIG.items())
    )
    zig = (sys.executable, "-m", "ziglang")
    machine = ("-target", "aarch64-linux-musl")  # the oldest processor's C library
    flags = (
        "-std=c++17",
        "-Oz",
        "-fno-exceptions",
        f"-I{KERNELS}",
        f"-I{KERNELS / 'include'}",
        f"-I{tmp_path}",
    )
    made, program = str(tmp_path / "unit.o"), str(tmp_path / "program")
    source = str(tmp_path / "unit.cc")
    subprocess.run(
        (*zig, "c++", *machine, f"-mcpu={processor}", *flags, "-c", source, "-o", made), check=True
    )
    subprocess.run((*zig, "cc", *machine, "-O1", "-static", made, "-o", program), check=True)
    random, data, wanted = np.random.default_rng(5), b"", []
    for m, n, k in SIZES:
        for dtype in (np.float16, ml_dtypes.bfloat16):
            a, b = (random.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
            data += a.tobytes() + b.tobytes()
            wanted += [native_product(a, b)] * 4
    (tmp_path / "operands").write_bytes(data)
    done = subprocess.run((*emulator, program, str(tmp_path / "operands")), capture_output=True, check=True)
    assert done.stderr.decode() == native
    assert done.stdout == b"".join(x.tobytes() for x in wanted)
