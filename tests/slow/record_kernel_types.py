"""Records where ONNX Runtime's own operators find the types of their kernels: schemas/ort_kernel_types.txt.

    python tests/slow/record_kernel_types.py [--ort-python PYTHON]

ONNX's operators say so in their schemas. Of ONNX Runtime's, those that minbuild knows are put into models of one node
each, and those that gradient rules write into a model of each rule; ONNX Runtime 1.19.2 writes all of them as `.ort`,
where it stands. Without --ort-python an environment with onnxruntime-training-cpu 1.19.2 is made for the purpose.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "golden"), str(ROOT)]

from authored import source  # noqa: E402
from gradients import backward_graph, is_smooth  # noqa: E402
from make_artifacts import prepare  # noqa: E402

from minbuild.authoring import Recipe, make_artifacts  # noqa: E402
from minbuild.authoring.optimizers import OptimizerOptions  # noqa: E402
from minbuild.frontend.onnx.writer import model_proto, opsets_of  # noqa: E402
from minbuild.frontend.ort_format.kernel_types import RECORD, Places, from_schema, rendered  # noqa: E402
from minbuild.frontend.ort_format.reader import schema  # noqa: E402
from minbuild.ir import ElementType, Graph, Node, TensorType  # noqa: E402
from minbuild.ir.flatbuffers.codec import decode  # noqa: E402
from minbuild.ops import registry  # noqa: E402
from minbuild.ops.core.definition import Op, TestCase  # noqa: E402

ENOUGH = 4  # cases of an operator: some have types that ONNX Runtime has no kernel for
OPSET = 17
# What cases of operators do not show: pooling gradients read types that only whole models declare.
FORWARD = """m (float[n,2,6,6] x) => (float[n,2,2,2] y) {
    a = Mul (x, w)
    b = MaxPool <kernel_shape=[2,2]> (a)
    c = AveragePool <kernel_shape=[2,2]> (b)
    ratio = Constant <value = float {0.5}> ()
    training = Constant <value = bool {1}> ()
    d = Dropout (c, ratio, training)
    y = AveragePool <kernel_shape=[2,2], strides=[2,2]> (d)
}"""
CONVERT = """
import os, sys
import onnxruntime as ort
ort.set_default_logger_severity(4)
for path in sys.argv[1:]:
    if os.fork():
        os.wait()
        continue
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = path[:-4] + "ort"
    options.add_session_config_entry("session.save_model_format", "ORT")
    try:
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception:
        pass  # there is no kernel, or none for these types
    os._exit(0)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ort-python", type=Path, help="Python with onnxruntime-training-cpu 1.19.2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="minbuild-kernel-types-") as name:
        place = Path(name)
        python = options.ort_python or prepare(place / "env", "python3.11")
        for path, data in _models(place):
            path.write_bytes(data)
        models = sorted(map(str, place.glob("*.onnx")))
        subprocess.run([str(python), "-c", CONVERT, *models], check=True, capture_output=True)
        found: dict[str, Places] = {}
        for path in sorted(place.glob("*.ort")):
            found |= _recorded(path)
    RECORD.write_text(rendered(found), "utf-8")
    lost = sorted({op.key for op in _operators()} - {title.rpartition(":")[0] for title in found})
    print(
        f"{len(found)} operators recorded; not in ONNX Runtime's CPU build, or not as here: {', '.join(lost)}"
    )


def _operators() -> list[Op]:
    """Those that ONNX does not have."""
    there = {(s.domain, s.name) for s in onnx.defs.get_all_schemas()}
    ops = registry().ops.values()
    return [op for op in ops if op.domain in ("", "com.microsoft") and (op.domain, op.name) not in there]


def _models(place: Path) -> Iterator[tuple[Path, bytes]]:
    for op in _operators():
        for number, case in enumerate(_cases(op)):
            yield place / f"{op.name}-{number}.onnx", _one_node(op, case)
    for op in registry().ops.values():
        for number, case in enumerate(_cases(op) if op.gradient is not None else ()):
            if is_smooth(op, case):
                graph = backward_graph(op, case, np.random.default_rng(1))[0].training
                yield place / f"{op.name}-gradient-{number}.onnx", _written(_in_floats(graph))
    forward = source(FORWARD, {"w": np.ones((2, 6, 6), np.float32)})
    for name in ("adamw", "sgd"):
        recipe = Recipe("mse", optimizer=name, optimizer_options=OptimizerOptions(max_norm=1.0))
        for file, data in make_artifacts(forward, recipe).files.items():
            if file.endswith(".onnx"):
                yield place / f"{name}-{file}", data


def _cases(op: Op) -> list[TestCase]:
    """Some of the operator's, with real numbers as floats, which ONNX Runtime has most kernels for."""
    cases = [] if op.cases is None else list(op.cases(np.random.default_rng(1)))[:ENOUGH]
    return [
        replace(case, inputs=tuple(x if x is None else _as_float(x) for x in case.inputs)) for case in cases
    ]


def _as_float(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _in_floats(graph: Graph) -> Graph:
    inputs = {
        n: TensorType(ElementType.FLOAT, t.shape) if t.element is ElementType.DOUBLE else t
        for n, t in graph.inputs.items()
    }
    return replace(
        graph, inputs=inputs, initializers={n: _as_float(a) for n, a in graph.initializers.items()}
    )


def _one_node(op: Op, case: TestCase) -> bytes:
    arrays = {f"x{i}": np.asarray(x) for i, x in enumerate(case.inputs) if x is not None}
    inputs = tuple(f"x{i}" if f"x{i}" in arrays else "" for i in range(len(case.inputs)))
    outputs = tuple("" if i in case.absent else f"y{i}" for i in range(case.outputs))
    node = Node(op.name, op.domain, 1, "node", inputs, outputs, case.attributes)
    types = {n: TensorType(ElementType.of(x.dtype), x.shape) for n, x in arrays.items()}
    constants = {n: x for n, x in arrays.items() if int(n[1:]) in case.constant}
    given = {n: t for n, t in types.items() if n not in constants}
    return _written(Graph("model.onnx", (node,), given, {}, tuple(n for n in outputs if n), constants))


def _written(graph: Graph) -> bytes:
    """The ONNX file; what the types of its outputs are is for ONNX Runtime to say."""
    types = dict.fromkeys(graph.outputs, TensorType(ElementType.FLOAT, None))
    model = model_proto(graph, types, opsets_of(graph.nodes, OPSET))
    for output in model.graph.output:
        output.ClearField("type")
    return bytes(model.SerializeToString(deterministic=True))


def _recorded(path: Path) -> dict[str, Places]:
    """What a file says of operators that ONNX does not have."""
    found = {}
    for entry in decode(schema(), path.read_bytes())["kernel_types"]["operators"]:
        domain, name, version = entry["operator"].split(":")
        if from_schema(domain, name, int(version)) is None:
            found[entry["operator"]] = {
                kind["name"]: tuple((a["side"], a["index"]) for a in kind["arguments"])
                for kind in entry["types"]
            }
    return found


if __name__ == "__main__":
    main()
