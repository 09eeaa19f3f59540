"""Memory and plans of loops over time: an Elman cell as a Scan and as Loops beside ONNX's RNN, then a Mamba and an RWKV
recurrence and LinearAttention, for several lengths.

python tests/slow/measure_loops.py [LENGTH ...] > reports/baseline/loops.md

Sizes are those that `minbuild reduce --no-analysis` reports for this machine, which proves each trainer first."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import with_dense_plans

INPUTS, HIDDEN, OUTPUTS = 16, 32, 4


def tensor(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


RECURRENCES = {
    "Loop": """
        last, y = Loop (rounds, yes, start) <body = round (int64 i, bool going, float[1,32] h) =>
                (bool on, float[1,32] next, float[1,32] y_t) {
            on = Identity (going)
            x_t = Gather (x, i)
            a = MatMul (x_t, W) b = MatMul (h, R) c = Add (a, b) d = Add (c, B)
            next = Tanh (d)
            y_t = Identity (next)
        }>
        mean = ReduceMean <axes = [0], keepdims = 0> (y)""",
    "Loop that may end early": """
        mean = Loop (rounds, yes, start) <body = round (int64 i, bool going, float[1,32] h) =>
                (bool on, float[1,32] next) {
            x_t = Gather (x, i)
            a = MatMul (x_t, W) b = MatMul (h, R) c = Add (a, b) d = Add (c, B)
            next = Tanh (d)
            size = ReduceMax <keepdims = 0> (next)
            on = Less (size, limit)
        }>""",
    "Mamba's recurrence, 8 states": """
        u = MatMul (x, W) r = MatMul (x, V) rate = Softplus (r) p = MatMul (x, P) q = MatMul (x, Q)
        last, y = Scan <num_scan_inputs = 4, body = round (float[32,8] h, float[1,32] u_t, float[1,32] r_t,
                float[1,8] b_t, float[1,8] c_t) => (float[32,8] next, float[1,32] y_t) {
            column = Transpose (r_t)
            fall = Mul (column, A) keep = Exp (fall) kept = Mul (h, keep)
            w = Mul (u_t, r_t) tall = Transpose (w) new = Mul (tall, b_t)
            next = Add (kept, new)
            row = Transpose (c_t) out_t = MatMul (next, row) y_t = Transpose (out_t)
        }> (states, u, rate, p, q)
        mean = ReduceMean <axes = [0], keepdims = 0> (y)""",
    "RWKV 4's recurrence": """
        k = MatMul (x, W) v = MatMul (x, V)
        e = Exp (D) w = Neg (e)
        la, lb, lm, y = Scan <num_scan_inputs = 2, body = round (float[1,32] a, float[1,32] b, float[1,32] m,
                float[1,32] kt, float[1,32] vt) =>
                (float[1,32] a2, float[1,32] b2, float[1,32] m2, float[1,32] y_t) {
            uk = Add (B, kt) top = Max (m, uk)
            d1 = Sub (m, top) e1 = Exp (d1) d2 = Sub (uk, top) e2 = Exp (d2)
            n1 = Mul (e1, a) n2 = Mul (e2, vt) n = Add (n1, n2) z1 = Mul (e1, b) z = Add (z1, e2)
            y_t = Div (n, z)
            mw = Add (m, w) m2 = Max (mw, kt)
            f1 = Sub (mw, m2) g1 = Exp (f1) f2 = Sub (kt, m2) g2 = Exp (f2)
            s1 = Mul (g1, a) s2 = Mul (g2, vt) a2 = Add (s1, s2) t1 = Mul (g1, b) b2 = Add (t1, g2)
        }> (zero, zero, zero, k, v)
        mean = ReduceMean <axes = [0], keepdims = 0> (y)""",
    "LinearAttention, gated delta, 4 heads of 8": """
        turned = Transpose <perm = [1, 0, 2]> (x)
        q = MatMul (turned, W) k = MatMul (turned, V) v = MatMul (turned, U)
        g1 = MatMul (turned, G) g2 = Softplus (g1) g = Neg (g2) b1 = MatMul (turned, H) beta = Sigmoid (b1)
        y, state = LinearAttention <q_num_heads = 4, kv_num_heads = 4> (q, k, v, , g, beta)
        mean = ReduceMean <keepdims = 0> (y, one)""",
}


def recurrence(kind: str, length: int | str) -> onnx.ModelProto:
    """A model around one of RECURRENCES."""
    random = np.random.default_rng(0)
    shapes = (
        dict.fromkeys("WVU", (INPUTS, HIDDEN)) | dict.fromkeys("PQ", (INPUTS, 8)) | {"R": (HIDDEN, HIDDEN)}
    )
    shapes |= {"B": (HIDDEN,), "D": (HIDDEN,), "A": (HIDDEN, 8), "G": (INPUTS, 4), "H": (INPUTS, 4)}
    shapes |= {"start": (1, HIDDEN), "O": (HIDDEN, OUTPUTS)}
    values = {n: (random.standard_normal(s) * 0.3).astype(np.float32) for n, s in shapes.items()}
    values["A"] = -abs(values["A"])
    values |= {"zero": np.zeros((1, HIDDEN), np.float32), "states": np.zeros((HIDDEN, 8), np.float32)}
    values |= {"yes": np.array(True), "limit": np.array(0.999, np.float32), "one": np.array([1])}
    body = RECURRENCES[kind]
    rounds = "most = Shape <start = 0, end = 1> (x) rounds = Squeeze (most)" if "rounds" in body else ""
    newer = "LinearAttention" in body
    text = f"""<ir_version: 8, opset_import: ["" : {27 if newer else 17}]>
        m (float[{length},1,{INPUTS}] x) => (float[1,{OUTPUTS}] out) {{
            {rounds} {body}
            out = MatMul (mean, O)
        }}"""
    made = onnx.parser.parse_model(text)
    read = set(re.findall(r"\w+", text))
    made.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in values.items() if n in read)
    return made


def model(kind: str, length: int | str) -> onnx.ModelProto:
    """A recurrent layer of 32 units over `length` inputs of 16, whose mean output leads to 4 numbers."""
    if kind in RECURRENCES:
        return recurrence(kind, length)
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
    sizes = {"T": int(str(length)[2:])} if free else {}
    planned = compile_model(folder / "artifacts", {}, sizes)
    dense = with_dense_plans([planned])
    assert dense is not None and plan in (len(planned.plan_bytes), len(dense[0].plan_bytes)), kind
    what = f"free, at most {str(length)[2:]}" if free else f"{length:,}"
    both = f"{len(planned.plan_bytes):,} | {len(dense[0].plan_bytes):,}"
    return f"| {kind} | {what} | {arena:,} | {ram:,} | {plan:,} | {both} |"


def main(lengths: list[str]) -> None:
    print("# Loops over time\n")
    print(
        "An Elman cell (16 inputs, 32 units, batch 1) as a Scan and as a Loop, which stay loops, beside ONNX's RNN, and"
    )
    print(
        "other recurrences over the same inputs. Bytes; RAM is temporaries with parameters, gradients, moments and"
    )
    print(
        "the session; the plan is that of the default, beside tables (`--plan-encoding plain`) and streams (`dense`),\n"
        "which take some 420 bytes more of the library. Made by `tests/slow/measure_loops.py`.\n"
    )
    print(
        "| operator | rounds | temporaries | RAM | plan | tables | streams |\n|---|--:|--:|--:|--:|--:|--:|"
    )
    for length in lengths:
        for kind in ("RNN", "Scan", *RECURRENCES):
            with tempfile.TemporaryDirectory() as folder:
                rounds = int(length) if length.isdigit() else length
                print(row(kind, rounds, Path(folder)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["64", "256", "1024", "T:256"])
