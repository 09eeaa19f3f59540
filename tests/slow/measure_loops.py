"""Memory and plans of loops over time: an Elman cell as a Scan beside ONNX's RNN, for several lengths.

python tests/slow/measure_loops.py [LENGTH ...] > reports/baseline/loops.md

Sizes are those that `minbuild reduce --no-analysis` reports for this machine, which proves each trainer first."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INPUTS, HIDDEN, OUTPUTS = 16, 32, 4


def tensor(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(kind: str, length: int | str) -> onnx.ModelProto:
    """A recurrent layer of 32 units over `length` inputs of 16, whose mean output leads to 4 numbers."""
    random = np.random.default_rng(0)
    shapes = {"O": (HIDDEN, OUTPUTS)}
    if kind == "RNN":
        shapes |= {"W": (1, HIDDEN, INPUTS), "R": (1, HIDDEN, HIDDEN), "B": (1, 2 * HIDDEN)}
        layer = [
            helper.make_node("RNN", ["x", "W", "R", "B"], ["y", ""], hidden_size=HIDDEN),
            helper.make_node("ReduceMean", ["y"], ["mean"], axes=[0, 1], keepdims=0),
        ]
    else:
        shapes |= {"W": (INPUTS, HIDDEN), "R": (HIDDEN, HIDDEN), "B": (HIDDEN,), "start": (1, HIDDEN)}
        nodes = [
            helper.make_node("MatMul", ["x_t", "W"], ["a"]),
            helper.make_node("MatMul", ["h", "R"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["c"]),
            helper.make_node("Add", ["c", "B"], ["d"]),
            helper.make_node("Tanh", ["d"], ["next"]),
            helper.make_node("Identity", ["next"], ["y_t"]),
        ]
        results = [tensor("next", 1, HIDDEN), tensor("y_t", 1, HIDDEN)]
        body = helper.make_graph(nodes, "round", [tensor("h", 1, HIDDEN), tensor("x_t", 1, INPUTS)], results)
        layer = [
            helper.make_node("Scan", ["start", "x"], ["last", "y"], body=body, num_scan_inputs=1),
            helper.make_node("ReduceMean", ["y"], ["mean"], axes=[0], keepdims=0),
        ]
    weights = [
        numpy_helper.from_array((random.standard_normal(s) * 0.3).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    nodes = [*layer, helper.make_node("MatMul", ["mean", "O"], ["out"])]
    graph = helper.make_graph(
        nodes, kind, [tensor("x", length, 1, INPUTS)], [tensor("out", 1, OUTPUTS)], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def row(kind: str, length: int | str, folder: Path) -> str:
    """One line of the table: what a trainer for at most `length` rounds takes; `T:256` is a free length."""
    free = isinstance(length, str)
    onnx.save(model(kind, "T" if free else length), folder / "model.onnx")
    run = [sys.executable, "-m", "minbuild"]
    make = ["artifacts", "model.onnx", "--out", "artifacts", "--loss", "mse"]
    subprocess.run([*run, *make], cwd=folder, check=True, stdout=sys.stderr)
    most = ["--max-dim", f"T={str(length)[2:]}"] if free else []
    options = ["--out", "dist", "--no-analysis", "--flavor", "interpreted", *most]
    subprocess.run([*run, "reduce", "artifacts", *options], cwd=folder, check=True, stdout=sys.stderr)
    report = json.loads((folder / "dist/report/report.json").read_text())
    ram, arena = report["targets"][0]["ram"], report["model"]["arenas"][0]["peak"]
    plan = (folder / "dist/model/trainer.plan").stat().st_size
    what = f"free, at most {str(length)[2:]}" if free else f"{length:,}"
    return f"| {kind} | {what} | {arena:,} | {ram:,} | {plan:,} |"


def main(lengths: list[str]) -> None:
    print("# Loops over time\n")
    print(
        "An Elman cell (16 inputs, 32 units, batch 1) as a Scan, which stays a loop, beside ONNX's RNN. Bytes; RAM is"
    )
    print(
        "temporaries with parameters, gradients, moments and the session. Made by `tests/slow/measure_loops.py`.\n"
    )
    print("| operator | rounds | temporaries | RAM | plan |\n|---|--:|--:|--:|--:|")
    for length in lengths:
        for kind in ("RNN", "Scan"):
            with tempfile.TemporaryDirectory() as folder:
                rounds = int(length) if length.isdigit() else length
                print(row(kind, rounds, Path(folder)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["64", "256", "1024", "T:256"])
