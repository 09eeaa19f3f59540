"""Speed of the matrix product, one thread: each vector width against numpy and ONNX Runtime.

Run: python tests/slow/bench_gemm.py [--cxx "g++ -Os"] [--flags=-DMINBUILD_AVX512=1] [--widths 16,32,64]
     [--reference PYTHON], an interpreter with onnx and onnxruntime.
Prints GFLOP/s (2*M*N*K per second), the best of several rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np  # noqa: E402  (after the thread count)

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from shared_kernels import DEFAULT_CXX, compile_gemm, gemm_arguments  # noqa: E402

# M x N x K and layout: N as stored, T transposed, of A and B; what it stands for in a train step.
SHAPES = (
    (256, 256, 256, "NN"),
    (1, 128, 784, "NT"),
    (8, 128, 784, "NT"),
    (32, 128, 784, "NT"),
    (128, 784, 8, "TN"),
    (128, 784, 32, "TN"),
    (8, 784, 128, "NN"),
    (32, 10, 128, "NT"),
    (4096, 32, 64, "NN"),
    (16, 4096, 144, "NN"),
    (96, 1024, 16, "NN"),
    (16, 1024, 96, "NN"),
    (24, 96, 1024, "NT"),
    (128, 784, 1, "TN"),
    (1, 784, 128, "NN"),
    (10, 128, 32, "TN"),
    (32, 128, 10, "NN"),
)


def best_rate(run: Callable[[int], None], flops: float) -> float:
    """GFLOP/s of the fastest of six rounds; `run(n)` does the product n times."""
    count = max(1, int(3e7 / flops))
    run(count)
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        run(count)
        best = min(best, time.perf_counter() - start)
    return flops * count / best / 1e9


def operands(m: int, n: int, k: int, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """A and B as stored (transposed where the layout says so), seeded."""
    random = np.random.default_rng(1)
    a = random.standard_normal((k, m) if layout[0] == "T" else (m, k), dtype=np.float32)
    b = random.standard_normal((n, k) if layout[1] == "T" else (k, n), dtype=np.float32)
    return a, b


def ours(library: ctypes.CDLL, width: int) -> list[float]:
    """Rates of the library at a vector width in bytes."""
    library.set_width(width)
    rates = []
    for m, n, k, layout in SHAPES:
        a, b = operands(m, n, k, layout)
        left = a.T if layout[0] == "T" else a
        right = b.T if layout[1] == "T" else b
        c = np.zeros((m, n), np.float32)
        arguments = gemm_arguments(left, right, c, 1.0, False)
        rates.append(best_rate(lambda count, x=arguments: library.gemm_float(count, *x), 2.0 * m * n * k))
    return rates


def numpy_rates() -> list[float]:
    """Rates of numpy.dot on the same layouts."""
    rates = []
    for m, n, k, layout in SHAPES:
        a, b = operands(m, n, k, layout)
        left = a.T if layout[0] == "T" else a
        right = b.T if layout[1] == "T" else b
        c = np.zeros((m, n), np.float32)

        def run(count: int, left: np.ndarray = left, right: np.ndarray = right, c: np.ndarray = c) -> None:
            for _ in range(count):
                np.dot(left, right, out=c)

        rates.append(best_rate(run, 2.0 * m * n * k))
    return rates


def ort_rates() -> list[float]:
    """Rates of ONNX Runtime's Gemm, 16 nodes per run so that the cost of a call counts little."""
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper

    nodes_per_run = 16
    rates = []
    for m, n, k, layout in SHAPES:
        a, b = operands(m, n, k, layout)
        nodes = [
            helper.make_node(
                "Gemm", ["a", "b"], [f"c{i}"], transA=int(layout[0] == "T"), transB=int(layout[1] == "T")
            )
            for i in range(nodes_per_run)
        ]
        inputs = [
            helper.make_tensor_value_info(x, TensorProto.FLOAT, v.shape) for x, v in (("a", a), ("b", b))
        ]
        outputs = [
            helper.make_tensor_value_info(f"c{i}", TensorProto.FLOAT, (m, n)) for i in range(nodes_per_run)
        ]
        model = helper.make_model(
            helper.make_graph(nodes, "g", inputs, outputs),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
        )
        onnx.checker.check_model(model)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        binding.bind_cpu_input("a", a)
        binding.bind_cpu_input("b", b)
        for i in range(nodes_per_run):
            c = ort.OrtValue.ortvalue_from_shape_and_type((m, n), np.float32, "cpu")
            binding.bind_ortvalue_output(f"c{i}", c)

        def run(
            count: int, session: ort.InferenceSession = session, binding: ort.IOBinding = binding
        ) -> None:
            for _ in range(max(1, count // nodes_per_run)):
                session.run_with_iobinding(binding)

        count = max(1, int(3e7 / (2.0 * m * n * k)))
        really = max(1, count // nodes_per_run) * nodes_per_run
        rates.append(best_rate(run, 2.0 * m * n * k) * really / count)
    return rates


def main() -> None:
    """Prints one row per shape, one column per contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cxx", default=" ".join(DEFAULT_CXX))
    parser.add_argument("--flags", default="")
    parser.add_argument("--widths", default="16,32")
    parser.add_argument("--reference", help="interpreter with onnx and onnxruntime")
    parser.add_argument("--only", choices=["ort"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only == "ort":
        print(json.dumps(ort_rates()))
        return
    columns: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        library = compile_gemm(Path(folder), tuple(options.cxx.split()), tuple(options.flags.split()))
        for width in map(int, options.widths.split(",")):
            columns[f"ours {width}"] = ours(library, width)
    columns["numpy"] = numpy_rates()
    if options.reference:
        command = [options.reference, __file__, "--only", "ort"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        columns["ort"] = json.loads(done.stdout)
    print(f"{'M x N x K':>20}    " + "".join(f"{name:>10}" for name in columns))
    for row, (m, n, k, layout) in enumerate(SHAPES):
        print(
            f"{f'{m} x {n} x {k}':>20} {layout} "
            + "".join(f"{rates[row]:10.1f}" for rates in columns.values())
        )


if __name__ == "__main__":
    main()
