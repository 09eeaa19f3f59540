"""Small libraries around kernels/shared for tests: compiled on the spot, loaded with ctypes."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
from places import ROOT

KERNELS = ROOT / "kernels"
DEFAULT_CXX = (sys.executable, "-m", "ziglang", "c++", "-Oz", "-Xclang", "-Oz", "-ffp-contract=on")
GCC_CXX = ("g++", "-Os", "-ffp-contract=fast")
FLAGS = (
    *(
        "-std=c++17",
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-math-errno",
        "-fPIC",
        "-shared",
        "-Wall",
        "-Wextra",
    ),
    *("-ffunction-sections", "-fvisibility=hidden", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables"),
    *("-fno-stack-protector", "-fomit-frame-pointer", "-Werror"),
)

GEMM_SOURCE = """
#include "lib/gemm/packed_gemm.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace minbuild;

template <class T>
static void run(int count, const Gemm<T>& g) {
  for (; count > 0; --count) gemm(g);
}
#define GEMM(name, T) \\
  EXPORT void name(int count, int m, int n, int k, const T* a, long ar, long ac, const T* b, long br, \\
                   long bc, T* c, long cr, long cc, T alpha, int accumulate) { \\
    run(count, Gemm<T>{m, n, k, a, ar, ac, b, br, bc, c, cr, cc, alpha, accumulate != 0}); \\
  }
GEMM(gemm_float, float)
#ifdef WITH_DOUBLE
GEMM(gemm_double, double)
#endif

// The same packed, in exactly the scratch memory that the product asks for.
#define PACKED(name, T) \\
  EXPORT void name(int count, int m, int n, int k, const T* a, long ar, long ac, const T* b, long br, \\
                   long bc, T* c, long cr, long cc, T alpha, int accumulate) { \\
    const Gemm<T> g = {m, n, k, a, ar, ac, b, br, bc, c, cr, cc, alpha, accumulate != 0}; \\
    T* room = static_cast<T*>(__builtin_malloc(Blocks<T>(g, widest_bytes()).elements(g) * sizeof(T))); \\
    for (; count > 0; --count) gemm_at(g, room); \\
    __builtin_free(room); \\
  }
PACKED(gemm_packed_float, float)
#ifdef WITH_DOUBLE
PACKED(gemm_packed_double, double)
#endif

// A packer that sees B = image patches of 3 taps, stride 2, zeros outside: B(k, j) = image[2j + k - 1].
struct Patches {
  const float* image;
  int size;
  void operator()(float* panel, int k, int depth, int j, int columns, int width) const {
    for (int i = 0; i < depth; ++i)
      for (int s = 0; s < columns; ++s) {
        int at = 2 * (j + s) + k + i - 1;
        panel[i * width + s] = at >= 0 && at < size ? image[at] : 0;
      }
  }
};
EXPORT void convolve(int m, int n, const float* a, const float* image, int size, float* c) {
  gemm(Gemm<float>{m, n, 3, a, 3, 1, nullptr, 0, 0, c, n}, Patches{image, size});
}

EXPORT void set_width(int bytes) {
#if MB_DISPATCHES
  vector_bytes_found = bytes;
#else
  (void)bytes;
#endif
}
EXPORT int width() { return widest_bytes(); }
"""


def compile_library(
    folder: Path, source: str, cxx: tuple[str, ...], flags: tuple[str, ...] = (), *, kernels: Path = KERNELS
) -> ctypes.CDLL:
    """Compiles one translation unit with `kernels` as the package would and loads it, or raises RuntimeError."""
    path = folder / "unit.cc"
    path.write_text(source)
    library = folder / "unit.so"
    on_linux = "ziglang" in cxx and sys.platform == "linux"
    target = ("-target", f"{platform.machine()}-linux-gnu") if on_linux else ()
    if "ziglang" in cxx:
        target += ("-nostdlib++",)  # nothing of it is used, and to build it takes minutes
    command = [*cxx, *target, *FLAGS, f"-I{kernels}", *flags, str(path), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return ctypes.CDLL(str(library))


def compile_gemm(
    folder: Path, cxx: tuple[str, ...] = DEFAULT_CXX, flags: tuple[str, ...] = ()
) -> ctypes.CDLL:
    """gemm_float and, with -DWITH_DOUBLE, gemm_double, for gemm_arguments; convolve, set_width, width."""
    return compile_library(folder, GEMM_SOURCE, cxx, flags)


def gemm_arguments(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, alpha: float, accumulate: bool
) -> list[object]:
    """The C arguments after `count` for numpy views of any strides."""
    pointer = ctypes.POINTER(ctypes.c_float if a.dtype == np.float32 else ctypes.c_double)
    number = ctypes.c_float if a.dtype == np.float32 else ctypes.c_double
    arguments: list[object] = [a.shape[0], b.shape[1], a.shape[1]]
    for x in (a, b, c):
        arguments.append(ctypes.cast(x.ctypes.data, pointer))
        arguments += [ctypes.c_long(stride // x.itemsize) for stride in x.strides]
    return [*arguments, number(alpha), int(accumulate)]


MATH_SOURCE = """
#include "lib/simd/math.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace minbuild;

#define UNARY(name) \\
  template <class T> \\
  struct name##Body { \\
    template <class W> \\
    static MB_INLINE void run(const T* x, T* y, int n) { \\
      using V = typename W::template of<T>; \\
      for (; n > 0; n -= V::size, x += V::size, y += V::size) { \\
        int live = n < V::size ? n : V::size; \\
        name(V::load(x, live)).store(y, live); \\
      } \\
    } \\
  }; \\
  EXPORT void name##_float(const float* x, float* y, int n) { dispatch<name##Body<float>>(x, y, n); } \\
  EXPORT void name##_double(const double* x, double* y, int n) { dispatch<name##Body<double>>(x, y, n); }
UNARY(exp)
UNARY(log)
UNARY(tanh)
UNARY(erf)
UNARY(sigmoid)
UNARY(sqrt)

template <class T>
struct PowBody {
  template <class W>
  static MB_INLINE void run(const T* x, const T* e, T* y, int n) {
    using V = typename W::template of<T>;
    for (; n > 0; n -= V::size, x += V::size, e += V::size, y += V::size) {
      pow(V::load(x, n), V::load(e, n)).store(y, n);
    }
  }
};
#define POW(name, T) \\
  EXPORT void name(const T* x, const T* e, T* y, int n) { dispatch<PowBody<T>>(x, e, y, n); }
POW(pow_float, float)
POW(pow_double, double)
EXPORT void set_width(int bytes) {
#if MB_DISPATCHES
  vector_bytes_found = bytes;
#else
  (void)bytes;
#endif
}
EXPORT int width() { return widest_bytes(); }
"""


def compile_math(
    folder: Path, cxx: tuple[str, ...] = DEFAULT_CXX, flags: tuple[str, ...] = ()
) -> ctypes.CDLL:
    """<function>_float and <function>_double over arrays; set_width and width."""
    return compile_library(folder, MATH_SOURCE, cxx, flags)


def apply(library: ctypes.CDLL, name: str, *inputs: np.ndarray) -> np.ndarray:
    """One of the functions of compile_math on arrays of one type."""
    result = np.empty_like(inputs[0])
    suffix = "float" if result.dtype == np.float32 else "double"
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (*inputs, result)]
    getattr(library, f"{name}_{suffix}")(*pointers, ctypes.c_int(result.size))
    return result
