"""Instructions of products of halves on aarch64, in native arithmetic and as float, counted under an emulator.

    python tests/slow/measure_half.py

Prints a table in Markdown. An emulator counts instructions and measures no time: no processor of this kind ran it.
Needs qemu-aarch64."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
KERNELS = TESTS.parent / "kernels"
M, N, K = 64, 64, 128

SOURCE = """
#include "lib/types/bytes.h"
#include "lib/gemm/half_gemm.h"
#include "lib/gemm/packed_gemm.h"
#include <stdlib.h>
using namespace minbuild;

constexpr int kM = SIZE_M, kN = SIZE_N, kK = SIZE_K;

template <class T>
T a[kM * kK];
template <class T>
T b[kK * kN];
float wide_a[kM * kK], wide_b[kK * kN], c[kM * kN], room[1 << 18];

template <class T>
MB_NOINLINE void widen(const T* from, float* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = from[i];
}

template <class T>
void native() {
  gemm(HalfGemm<T>{kM, kN, kK, a<T>, kK, 1, b<T>, kN, 1, c, kN, 1, 1, false});
}
void product() {
  Gemm<float> g = {kM, kN, kK, wide_a, kK, 1, wide_b, kN, 1, c, kN};
  multiply_packed<float>(g, widest_bytes(), room, pack_columns<float>, &g, nullptr);
}
template <class T>
void converted() {
  widen(a<T>, wide_a, kM * kK), widen(b<T>, wide_b, kK * kN);
  product();
}

int main(int, char** words) {
  void (*const forms[])() = {native<half>, converted<half>, native<bfloat16>, converted<bfloat16>, product};
  for (int i = atoi(words[2]); i > 0; --i) forms[atoi(words[1])]();
}
"""
FORMS = (
    "float16, native",
    "float16 to float, and the product of floats",
    "bfloat16, native",
    "bfloat16 to float, and the product of floats",
    "the product of floats alone",
)


def counted(program: Path, form: int, rounds: int) -> int:
    """The instructions of a run."""
    command = (
        f"qemu-aarch64 -singlestep -d exec,nochain -D /dev/stdout {program} {form} {rounds} | grep -c ^Trace"
    )
    return int(subprocess.run(("sh", "-c", command), capture_output=True, check=True).stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "minbuild").mkdir()
        config = {"THREADS": 1, "FUSED_UPDATES": 0, "COMPILED": 0}
        (folder / "minbuild" / "config.h").write_text(
            "".join(f"#define MB_{macro} {value}\n" for macro, value in config.items())
        )
        (folder / "unit.cc").write_text(SOURCE)
        zig, machine = (sys.executable, "-m", "ziglang"), ("-target", "aarch64-linux-musl")
        sizes = (f"-DSIZE_M={M}", f"-DSIZE_N={N}", f"-DSIZE_K={K}")
        flags = (
            "-std=c++17",
            "-Oz",
            "-fno-exceptions",
            "-fno-vectorize",
            f"-I{KERNELS}",
            f"-I{KERNELS}/include",
        )
        processor = "-mcpu=generic+fullfp16+bf16"
        compiled = (*zig, "c++", *machine, processor, *flags, *sizes, f"-I{folder}")
        subprocess.run((*compiled, "-c", str(folder / "unit.cc"), "-o", str(folder / "unit.o")), check=True)
        program = folder / "program"
        subprocess.run(
            (*zig, "cc", *machine, "-static", str(folder / "unit.o"), "-o", str(program)), check=True
        )
        print(f"| product of {M}x{K} and {K}x{N} | instructions | for each multiplication |\n|---|--:|--:|")
        for form, what in enumerate(FORMS):
            count = counted(program, form, 2) - counted(program, form, 1)
            print(f"| {what} | {count:,} | {count / (M * N * K):.3f} |", flush=True)


if __name__ == "__main__":
    main()
