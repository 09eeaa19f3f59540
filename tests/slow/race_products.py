"""Matrix products of trees of this project, and of MKL, in turns within one process and one thread.

    python tests/slow/race_products.py [--mkl LIBRARY] [--seconds 5] [--sets 1] [--shapes 1024x768x768:NN,...] [TREE...]

TREE is a checkout, by default this one; LIBRARY is MKL's libmkl_rt.so (pip install mkl). Where the machine's speed, or
what its neighbours leave of the caches, changes within seconds, only turns of milliseconds compare two kernels, and a
change of a few instructions in one may move loops of another: race whole trees. Sizes are M x N x K, orders N as stored
and T transposed, of A and B. --sets: so many operands in turn, for products of what is in memory, not in caches.

Each column has GFLOP/s, by the 20th percentile of processor time, and the median over turns of the time beside that of
the first. Trees have to give the same bits. Ends with 1 where they do not, or are far from sums in double precision.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("MKL_NUM_THREADS", "1")
import numpy as np  # noqa: E402  (after the thread count)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from bench_gemm import operands  # noqa: E402
from shared_kernels import DEFAULT_CXX, compile_library  # noqa: E402

SHAPES = ",".join(
    (
        *(f"1024x{n}x{k}:NN" for n, k in ((768, 768), (3072, 768), (768, 3072), (1024, 1024))),
        *("1024x768x768:NT", "768x768x1024:TN", "768x3072x128:TN"),
        *(f"{m}x768x768:{order}" for m in (32, 64, 128) for order in ("NN", "NT")),
        *("128x64x128:NN", "197x64x197:NN", "1576x768x192:NN"),
    )
)
SOURCE = """
#define MB_PRODUCT_TYPES(each) each(float)
#include "lib/gemm/packed_gemm.cc"
using namespace minbuild;
extern "C" __attribute__((visibility("default"))) void product(
    long m, long n, long k, const float* a, long a_row, long a_col, const float* b, long b_row, long b_col, float* c,
    float* scratch) {
  Gemm<float> g = {m, n, k, a, a_row, a_col, b, b_row, b_col, c, n};
  g.wide = true;
  gemm_at(g, scratch);
}
"""
ROOM = 4 << 20  # elements of scratch memory, more than any product takes
LEAST = 0.02  # seconds of a turn
FEWEST = 5  # turns
NO_TRANSPOSE, TRANSPOSE, ROW_MAJOR = 111, 112, 101  # of CBLAS
Product = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


class Shape:
    """Sizes and orders of a product."""

    def __init__(self, text: str) -> None:
        sizes, _, self.order = text.partition(":")
        self.m, self.n, self.k = map(int, sizes.split("x"))
        self.text = text
        if len(self.order) != 2 or set(self.order) - set("NT"):
            raise ValueError(f"{text}: no order of two letters N and T behind a colon")

    def operands(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A and B as they are stored, and C."""
        return (*operands(self.m, self.n, self.k, self.order), np.zeros((self.m, self.n), np.float32))

    def steps(self) -> tuple[int, int, int, int]:
        """From a row of A to the next, from a column of A, and the same of B."""
        a = (1, self.m) if self.order[0] == "T" else (self.k, 1)
        b = (1, self.k) if self.order[1] == "T" else (self.n, 1)
        return (*a, *b)

    @property
    def operations(self) -> float:
        return 2.0 * self.m * self.n * self.k


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def of_tree(library: ctypes.CDLL, shape: Shape) -> Product:
    """The product as a tree computes it."""
    long, room = ctypes.c_long, np.zeros(ROOM, np.float32)
    a_row, a_col, b_row, b_col = map(long, shape.steps())
    sizes = tuple(map(long, (shape.m, shape.n, shape.k)))

    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        library.product(*sizes, pointer(a), a_row, a_col, pointer(b), b_row, b_col, pointer(c), pointer(room))

    return run


def of_mkl(library: ctypes.CDLL, shape: Shape) -> Product:
    """The product as MKL computes it."""
    orders = [TRANSPOSE if letter == "T" else NO_TRANSPOSE for letter in shape.order]
    one, zero = ctypes.c_float(1), ctypes.c_float(0)

    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        rows = (a.shape[1], b.shape[1], c.shape[1])
        library.cblas_sgemm(
            *(ROW_MAJOR, *orders, shape.m, shape.n, shape.k, one, pointer(a), rows[0]),
            *(pointer(b), rows[1], zero, pointer(c), rows[2]),
        )

    return run


def raced(shape: Shape, products: dict[str, Product], seconds: float, sets: int) -> dict[str, list[float]]:
    """Processor time of each, turn by turn, the order of which changes."""
    given = [shape.operands() for _ in range(sets)]
    count = max(sets, round(LEAST * 1e11 / shape.operations))
    names, times = list(products), {name: [] for name in products}
    end, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turn < FEWEST:
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            products[name](*given[0])
            began = time.process_time()
            for i in range(count):
                products[name](*given[i % sets])
            times[name].append((time.process_time() - began) / count)
        turn += 1
    return times


def agree(shape: Shape, products: dict[str, Product]) -> bool:
    """True if trees give the same bits, and all what sums in double precision give."""
    a, b, _ = shape.operands()
    left, right = (x.T if letter == "T" else x for x, letter in zip((a, b), shape.order, strict=True))
    exact = left.astype(np.float64) @ right.astype(np.float64)
    bound = 1e-5 * (np.abs(left).astype(np.float64) @ np.abs(right).astype(np.float64))
    results = {}
    for name, product in products.items():
        c = np.full((shape.m, shape.n), np.nan, np.float32)
        product(a, b, c)
        results[name] = c
        if not (np.abs(c - exact) <= bound).all():
            print(f"{shape.text}: {name} is far from sums in double precision")
            return False
    bits = {name: c.tobytes() for name, c in results.items() if name != "MKL"}
    if len(set(bits.values())) > 1:
        print(f"{shape.text}: {', '.join(bits)} differ in bits")
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mkl", metavar="LIBRARY")
    parser.add_argument("--seconds", type=float, default=5, help="of racing a shape")
    parser.add_argument("--sets", type=int, default=1)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("trees", nargs="*", type=Path, default=[ROOT], metavar="TREE")
    given = parser.parse_args()
    shapes, well, ratios = [Shape(text) for text in given.shapes.split(",")], True, {}
    with tempfile.TemporaryDirectory() as place:
        libraries = {}
        for i, tree in enumerate(given.trees):
            folder = Path(place) / str(i)
            folder.mkdir()
            kernels = tree.resolve() / "kernels"
            libraries[str(tree)] = compile_library(
                folder, SOURCE, DEFAULT_CXX, ("-DMINBUILD_AVX512=1",), kernels=kernels
            )
        mkl = ctypes.CDLL(given.mkl) if given.mkl else None
        for shape in shapes:
            products = {"MKL": of_mkl(mkl, shape)} if mkl else {}
            products |= {name: of_tree(library, shape) for name, library in libraries.items()}
            well &= agree(shape, products)
            times = raced(shape, products, given.seconds, given.sets)
            first = np.array(next(iter(times.values())))
            line = f"{shape.text:20}"
            for name, each in times.items():
                ratios.setdefault(name, []).append(float(np.median(np.array(each) / first)))
                rate = shape.operations / float(np.percentile(each, 20)) / 1e9
                line += f"{rate:8.1f} ({ratios[name][-1]:.2f})"
            print(line, flush=True)
    print(f"{'geometric mean':20}" + "".join(f"{np.exp(np.mean(np.log(r))):15.3f} " for r in ratios.values()))
    print("columns:", ", ".join(ratios))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
