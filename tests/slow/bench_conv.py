"""Speed of convolutions and their gradients, one thread, layer by layer, against ONNX Runtime.

Run: python tests/slow/bench_conv.py [--batch 8] [--reference PYTHON] [--only TEXT]
`--reference` is an interpreter with onnx and onnxruntime-training. Prints GFLOP/s (2 * multiplications per
second) of the forward pass, the gradient of the input and that of the weights, the best of many rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import trainers  # noqa: E402

from minbuild.ops import registry  # noqa: E402
from minbuild.ops.convolution.sliding_window import axes  # noqa: E402
from minbuild.ops.core.definition import TestCase  # noqa: E402
from minbuild.training.library import Session  # noqa: E402

# Channels and size of x, shape of w, stride, pad, groups: layers of the networks this has to be fast for.
LAYERS = (
    ("gray 5x5", (1, 28, 28), (6, 1, 5, 5), 1, 2, 1),
    ("5x5", (6, 14, 14), (16, 6, 5, 5), 1, 0, 1),
    ("colour 3x3", (3, 32, 32), (16, 3, 3, 3), 1, 1, 1),
    ("colour 3x3 by 2", (3, 64, 64), (16, 3, 3, 3), 2, 1, 1),
    ("16 3x3", (16, 32, 32), (16, 16, 3, 3), 1, 1, 1),
    ("16 3x3 by 2", (16, 32, 32), (32, 16, 3, 3), 2, 1, 1),
    ("32 3x3", (32, 16, 16), (32, 32, 3, 3), 1, 1, 1),
    ("32 3x3 by 2", (32, 16, 16), (64, 32, 3, 3), 2, 1, 1),
    ("64 3x3", (64, 8, 8), (64, 64, 3, 3), 1, 1, 1),
    ("1x1 by 2", (16, 32, 32), (32, 16, 1, 1), 2, 0, 1),
    ("1x1 wide", (8, 32, 32), (48, 8, 1, 1), 1, 0, 1),
    ("1x1 narrow", (48, 16, 16), (8, 48, 1, 1), 1, 0, 1),
    ("1x1 small", (24, 4, 4), (144, 24, 1, 1), 1, 0, 1),
    ("1x1 tiny", (56, 2, 2), (336, 56, 1, 1), 1, 0, 1),
    ("depthwise", (16, 32, 32), (16, 1, 3, 3), 1, 1, 16),
    ("depthwise by 2", (48, 32, 32), (48, 1, 3, 3), 2, 1, 48),
    ("depthwise mid", (48, 16, 16), (48, 1, 3, 3), 1, 1, 48),
    ("depthwise small", (144, 4, 4), (144, 1, 3, 3), 1, 1, 144),
    ("depthwise tiny", (336, 2, 2), (336, 1, 3, 3), 1, 1, 336),
)
COMPONENTS = (("forward", frozenset()), ("dX", frozenset({1, 2})), ("dW", frozenset({0, 2})))


def best_seconds(run: Callable[[], object]) -> float:
    """Of the fastest of many runs."""
    best = float("inf")
    end = time.perf_counter() + 0.25
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def layer_cases(batch: int, only: str) -> dict[str, tuple[TestCase, float]]:
    """A case and its floating-point operations, by layer and part."""
    random = np.random.default_rng(1)
    found = {}
    for name, x, w, stride, pad, groups in LAYERS:
        if only not in name:
            continue
        attributes = {"kernel_shape": w[2:], "strides": (stride,) * 2, "pads": (pad,) * 4, "group": groups}
        attributes |= {"dilations": (1, 1), "auto_pad": "NOTSET"}
        sizes = tuple(int(a.outputs) for a in axes(attributes, x[1:], w[2:]))  # type: ignore[arg-type]
        images = random.standard_normal((batch, *x)), random.standard_normal(w)
        dy = random.standard_normal((batch, w[0], *sizes))
        flops = 2.0 * dy.size * np.prod(w[1:])
        for part, absent in COMPONENTS:
            inputs = images if part == "forward" else (dy, *images)
            case = TestCase(part, inputs, attributes, outputs=1 if part == "forward" else 3, absent=absent)
            found[f"{name:16} {part}"] = case, flops
    return found


def our_seconds(cases: dict[str, tuple[TestCase, float]]) -> dict[str, float]:
    """Through a trainer of one operator each, so about ten microseconds of Python are in it."""
    known = registry()
    ops = {
        part: known.ops["com.microsoft:ConvGrad" if part != "forward" else ":Conv"] for part, _ in COMPONENTS
    }
    nodes = {name: trainers.one_node(ops[case.name], case) for name, (case, _) in cases.items()}
    plans = {name: trainers.plan_of(one.artifacts, known) for name, one in nodes.items()}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        library = trainers.library_of(trainers.contents_of(plans.values()), known, Path(folder))
        for name, one in nodes.items():
            session: Session = trainers.session_of(library, plans[name], one.state)
            found[name] = best_seconds(lambda session=session, one=one: session.run(0, one.feeds))  # type: ignore[misc]
    return found


REFERENCE = r"""
import json, sys, time
import numpy as np, onnx, onnxruntime
from onnx import helper, TensorProto
out = {}
for name, op, domain, attributes, shapes, outputs in json.load(open(sys.argv[1])):
    names = ["x%d" % i for i in range(len(shapes))]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, shapes)]
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    ends = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs if o]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", info, ends), opset_imports=sets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    feeds = {n: np.random.rand(*s).astype("float32") for n, s in zip(names, shapes)}
    best, end = 1e9, time.perf_counter() + 0.25
    while time.perf_counter() < end:
        start = time.perf_counter()
        session.run(None, feeds)
        best = min(best, time.perf_counter() - start)
    out[name] = best
print(json.dumps(out))
"""


def reference_seconds(python: str, cases: dict[str, tuple[TestCase, float]]) -> dict[str, float]:
    jobs = []
    for name, (case, _) in cases.items():
        op, domain = ("Conv", "") if case.name == "forward" else ("ConvGrad", "com.microsoft")
        outputs = ["" if i in case.absent else f"y{i}" for i in range(case.outputs)]
        shapes = [x.shape for x in case.inputs if x is not None]
        jobs.append((name, op, domain, dict(case.attributes), shapes, outputs))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.json"
        path.write_text(json.dumps(jobs), "utf-8")
        done = subprocess.run(
            [python, "-c", REFERENCE, str(path)], capture_output=True, text=True, check=True, timeout=600
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--reference", default="")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    cases = layer_cases(options.batch, options.only)
    ours = our_seconds(cases)
    theirs = reference_seconds(options.reference, cases) if options.reference else {}
    for name, (_, flops) in cases.items():
        line = f"{name:26} {ours[name] * 1e6:9.1f} us {flops / ours[name] / 1e9:7.1f} GF/s"
        if name in theirs:
            line += f"   reference {flops / theirs[name] / 1e9:7.1f}"
            line += f"   time ratio {ours[name] / theirs[name]:5.2f}"
        print(line)


if __name__ == "__main__":
    main()
