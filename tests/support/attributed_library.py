"""A library whose owners of bytes are known, linked for three machines: shared by tests of sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from minbuild import ir as model
from minbuild.analysis.attribution import Attribution, attribute
from minbuild.formats import elf
from minbuild.formats import symbol_origins as owners

TARGETS = ("x86_64-linux-gnu", "thumb-linux-gnueabihf", "aarch64-linux-musl")


SHARED_H = """
#pragma once
#include <stdint.h>
namespace minbuild {
struct Call { void** args; const int32_t* params; };
enum class Status : uint8_t { kOk, kBad };
float shared_exp(float x);
template <class Body, class... Rest> __attribute__((noinline)) void each(float* x, int n, Rest... rest) {
  for (int i = 0; i < n; ++i) x[i] = Body::of(x[i], rest...);
}
struct Doubled {
  static float of(float x, int by) { return x + by * x; }
};
template <class T> __attribute__((noinline)) T dot(const T* a, const T* b, int n) {
  T sum{};
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
}  // namespace minbuild
"""


SOURCES = {
    "kernels/gemm.cc": """
#include "lib/math.h"
namespace minbuild {
template <class T> Status gemm(const Call& c) {
  *(T*)c.args[0] = dot<T>((T*)c.args[1], (T*)c.args[2], c.params[0]);
  return Status::kOk;
}
template Status gemm<float>(const Call&);
}""",
    "kernels/softmax.cc": """
#include "lib/math.h"
namespace minbuild {
struct Cubed {
  static float of(float x) { return x * x * x; }
};
__attribute__((noinline)) static float largest(const float* x, int n) {
  float best = x[0];
  for (int i = 1; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}
template <class T> Status softmax(const Call& c) {
  T* y = (T*)c.args[0];
  y[1] = dot<T>(y, (T*)c.args[1], c.params[0]) + largest(y, c.params[1]);
  for (int i = 0; i < c.params[0]; ++i) y[i] = shared_exp(y[i]);
  return Status::kOk;
}
template <class T> Status softmax_grad(const Call& c) {
  each<Cubed>((float*)c.args[0], c.params[2]);
  each<Doubled>((float*)c.args[1], c.params[3], 2);
  ((T*)c.args[0])[2] = 3 - largest((T*)c.args[1], c.params[0]);
  return Status::kOk;
}
template Status softmax<float>(const Call&);
template Status softmax_grad<float>(const Call&);
}""",
    "kernels/copy.cc": """
#include "lib/math.h"
namespace minbuild {
template <class T> Status copy(const Call& c) {
  for (int i = 0; i < c.params[0]; ++i) ((T*)c.args[0])[i] = ((T*)c.args[1])[i + 1];
  return Status::kOk;
}
template Status copy<int32_t>(const Call&);
}""",
    "kernels/move.cc": """
#include "lib/math.h"
namespace minbuild {
template <class T> Status move(const Call& c) {
  for (int i = 0; i < c.params[0]; ++i) ((T*)c.args[0])[i] = ((T*)c.args[1])[i + 1];
  return Status::kOk;
}
template Status move<int32_t>(const Call&);
}""",
    "kernels/lib/math.cc": """
#include "lib/math.h"
namespace minbuild {
static const float powers[16] = {1, 2, 3, 4, 5.5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7.25};
float shared_exp(float x) { return powers[(int)x & 15] * x + 0.3f; }
}""",
    "kernels/runtime/session.cc": """
#include "lib/math.h"
extern "C" int host_clock(void);
extern "C" __attribute__((noinline)) void zero(char* p, int n) {
  for (volatile char* q = p; n--;) *q++ = 0;
}
namespace minbuild {
template <class T> Status gemm(const Call&);
template <class T> Status softmax(const Call&);
template <class T> Status softmax_grad(const Call&);
template <class T> Status copy(const Call&);
template <class T> Status move(const Call&);
using Function = Status (*)(const Call&);
static const Function table[] = {gemm<float>, softmax<float>, softmax_grad<float>, copy<int32_t>,
                                 move<int32_t>};
static char counters[256];
}
#define MB_API extern "C" __attribute__((visibility("default")))
MB_API const char* mb_last_error(int i) {
  return i == 1 ? "bad plan: the table is damaged" : i == 2 ? "no such parameter" : "";
}
MB_API int mb_train_step(minbuild::Call* c, int k) {
  zero(minbuild::counters, k);
  return (int)minbuild::table[k](*c) + minbuild::counters[k + 1] + host_clock();
}""",
}


def kernel(function: str, stem: str, types: tuple[str, ...] = ("float",)) -> model.Kernel:
    return model.Kernel(stem=stem, function=function, types=types, args=(), params=0)


KERNELS = (
    kernel("gemm", "gemm"),
    kernel("softmax", "softmax"),
    kernel("softmax_grad", "softmax"),
    kernel("copy", "copy", ("int32_t",)),
    kernel("move", "move", ("int32_t",)),
)


class Library:
    """One link of SOURCES: the files as bytes, what they tell, and who owns what."""

    def __init__(self, target: str, folder: Path) -> None:
        self.target = target
        zig = [sys.executable, "-m", "ziglang"]
        (folder / "lib").mkdir()
        (folder / "lib" / "math.h").write_text(SHARED_H)
        self.objects = {}
        files = []
        for path, text in SOURCES.items():
            source = folder / path.replace("/", ".")
            source.write_text(text)
            result = source.with_suffix(".o")
            flags = [
                "-Oz",
                "-std=c++17",
                "-fPIC",
                "-fno-exceptions",
                "-fno-rtti",
                "-fvisibility=hidden",
                "-fno-unwind-tables",
            ]
            flags += ["-ffunction-sections", "-fdata-sections", f"-I{folder}", "-c"]
            subprocess.run([*zig, "c++", "-target", target, *flags, source, "-o", result], check=True)
            self.objects[path] = result.read_bytes()
            files.append(result)
        link = [*zig, "ld.lld", "-shared", "--gc-sections", "--icf=all", "--hash-style=gnu", *files]
        link += ["-z", "max-page-size=4096", "-o", folder / "out"]
        self.unstripped = self._link([*link, "--emit-relocs"], folder)
        self.stripped = self._link([*link, "-s"], folder)
        self.headerless = self._link([*link, "-s", "-z", "nosectionheader"], folder)
        subprocess.run([*zig, "ar", "rcsD", folder / "lib.a", *files], check=True)
        self.archive = (folder / "lib.a").read_bytes()
        self.sources = {
            **{path: text.encode() for path, text in SOURCES.items()},
            "kernels/lib/math.h": SHARED_H.encode(),
        }
        self.owners = owners.from_objects(self.objects, {p: d.decode() for p, d in self.sources.items()})
        self.binary = elf.read_binary("libtrainer.so", target, self.stripped, self.unstripped)

    @staticmethod
    def _link(command: list[object], folder: Path) -> bytes:
        subprocess.run([str(word) for word in command], check=True)
        return (folder / "out").read_bytes()

    def attribution(self) -> Attribution:
        return attribute(self.binary, self.owners, KERNELS)


def rows(attribution: Attribution) -> dict[tuple[str, str], int]:
    found = {(s.owner.kind, s.owner.name): s.bytes for s in attribution.shares}
    assert len(found) == len(attribution.shares), "an owner has two rows"
    return found
