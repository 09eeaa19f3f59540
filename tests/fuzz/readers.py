"""Damaged files for the readers in Python: every run must end well or in an error that names what is wrong.

    python tests/fuzz/readers.py [--count 2000] [--first 0] [--jobs 2] [--json FILE]

Each case is one number: it chooses an artifact set, a file of it (`.onnx`, `.ort`, checkpoint, settings), and
structured mutations: attributes of other types and values, missing and swapped inputs, other operators, wrong ranks,
sizes, element types and versions, cut and changed bytes. The set is then scanned and compiled as `minbuild reduce`
would, up to the plan, in a process with a limit of 10 s and 1 GB. A finding is any exception but MinbuildError, a
crash, or a limit that is exceeded; each is printed with its number, which `--first NUMBER --count 1` repeats. Ends
with 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "support")]

import hostile  # noqa: E402
from case_sets import GOLDEN  # noqa: E402

from minbuild.cli.settings_file import read_settings  # noqa: E402
from minbuild.errors import MinbuildError  # noqa: E402
from minbuild.frontend.checkpoint import schema as checkpoint_schema  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.scan import scan  # noqa: E402

SECONDS, BYTES = 10, 1 << 30
FILES = ("checkpoint", "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx")
SETS = ("dense", "dense_fixed", "conv", "residual", "embedding", "transfer", "weighted", "dense_ort")
OPERATORS = (
    *(
        "Conv",
        "MaxPool",
        "Gemm",
        "MatMul",
        "Reshape",
        "Transpose",
        "Concat",
        "Slice",
        "Softmax",
        "ReduceSum",
        "Pad",
    ),
    *(
        "Gather",
        "Cast",
        "Expand",
        "Tile",
        "Split",
        "BatchNormalization",
        "LayerNormalization",
        "LSTM",
        "Resize",
        "TopK",
    ),
    *(
        "Einsum",
        "If",
        "Loop",
        "Scan",
        "Dropout",
        "ConvTranspose",
        "AveragePool",
        "ScatterND",
        "OneHot",
        "QuantizeLinear",
    ),
)
Random = np.random.Generator


def extreme(random: Random) -> int:
    return int(random.choice([-(2**63), -(2**31), -2, -1, 0, 1, 2, 7, 2**16, 2**31 - 1, 2**36, 2**63 - 1]))


def change_attribute(model: ModelProto, random: Random) -> None:
    """An attribute takes another type or an extreme value, or a new one appears."""
    node = model.graph.node[random.integers(len(model.graph.node))]
    names = [a.name for a in node.attribute] or ["axis"]
    name = str(random.choice([*names, "axis", "strides", "pads", "to", "perm", "group", "keepdims"]))
    values: list[Any] = [
        *(
            extreme(random),
            float("nan"),
            1e38,
            "text",
            b"\xff\xfe",
            [],
            [extreme(random)] * int(random.integers(1, 9)),
        ),
        *(
            [0.5, float("inf")],
            ["a", ""],
            onnx.helper.make_tensor("t", TensorProto.INT64, [2], [extreme(random), 1]),
        ),
    ]
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    value = values[random.integers(len(values))]
    if isinstance(value, list) and not value:
        node.attribute.add(name=name, type=AttributeProto.INTS)
    elif random.random() < 0.9:
        node.attribute.append(onnx.helper.make_attribute(name, value))


def change_inputs(model: ModelProto, random: Random) -> None:
    """Inputs or outputs of a node go, come twice, change places or have another name."""
    node = model.graph.node[random.integers(len(model.graph.node))]
    side = node.input if random.random() < 0.7 else node.output
    names = list(side)
    everywhere = [n for other in model.graph.node for n in (*other.input, *other.output)] or [""]
    kind = random.integers(4)
    if kind == 0 and names:
        names.pop(random.integers(len(names)))
    elif kind == 1 and names:
        names.insert(0, names[random.integers(len(names))])
    elif kind == 2:
        random.shuffle(names)
    else:
        names.append(str(random.choice([*everywhere, "", "nobody"])))
    del side[:]
    side.extend(names)


def change_operator(model: ModelProto, random: Random) -> None:
    node = model.graph.node[random.integers(len(model.graph.node))]
    node.op_type = str(random.choice(OPERATORS))
    if random.random() < 0.2:
        node.domain = str(random.choice(["", "com.microsoft", "ai.onnx.preview.training", "x"]))


def change_shape(model: ModelProto, random: Random) -> None:
    """A declared shape loses its rank, or gets other sizes, names or element types."""
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    tensor = values[random.integers(len(values))].type.tensor_type
    kind = random.integers(4)
    if kind == 0:
        tensor.ClearField("shape")
    elif kind == 1:
        tensor.elem_type = int(random.integers(0, 24))
    elif kind == 2:
        tensor.shape.dim.add().dim_value = extreme(random)
    else:
        for dim in tensor.shape.dim:
            if random.random() < 0.5:
                if random.random() < 0.5:
                    dim.dim_value = extreme(random)
                else:
                    dim.dim_param = str(random.choice(["", "batch", "N", "-1", "a b", "x" * 300]))


def change_initializer(model: ModelProto, random: Random) -> None:
    if not model.graph.initializer:
        return change_shape(model, random)
    tensor = model.graph.initializer[random.integers(len(model.graph.initializer))]
    kind = random.integers(4)
    if kind == 0:
        tensor.dims.append(extreme(random))
    elif kind == 1:
        tensor.data_type = int(random.integers(0, 24))
    elif kind == 2:
        tensor.raw_data = tensor.raw_data[: random.integers(0, len(tensor.raw_data) + 1)]
    else:
        tensor.name = str(random.choice(["", "x", *(t.name for t in model.graph.initializer)]))
    return None


def change_version(model: ModelProto, random: Random) -> None:
    if random.random() < 0.5 and model.opset_import:
        model.opset_import[random.integers(len(model.opset_import))].version = extreme(random)
    elif random.random() < 0.5:
        del model.opset_import[:]
    else:
        model.ir_version = extreme(random)


def add_function(model: ModelProto, random: Random) -> None:
    """Functions that call each other, sixteen deep and twice each, or themselves."""
    deep = int(random.integers(1, 30))
    for i in range(deep):
        function = model.functions.add(name=f"f{i}", domain="local")
        function.input.append("a")
        function.output.append("b")
        function.opset_import.add(domain="", version=15)
        function.opset_import.add(domain="local", version=1)
        below = f"f{i + 1}" if i + 1 < deep else ("f0" if random.random() < 0.3 else "")
        first, second = function.node.add(), function.node.add()
        for node, source, result in ((first, "a", "m"), (second, "m", "b")):
            node.op_type, node.domain = (below, "local") if below else ("Identity", "")
            node.input.append(source)
            node.output.append(result)
    model.opset_import.add(domain="local", version=1)
    node = model.graph.node[random.integers(len(model.graph.node))]
    if node.output and node.input:
        call = model.graph.node.add(op_type="f0", domain="local")
        call.input.append(node.input[0])
        call.output.append("called")


def reorder(model: ModelProto, random: Random) -> None:
    nodes = list(model.graph.node)
    random.shuffle(nodes)  # type: ignore[arg-type]
    if random.random() < 0.5:
        nodes = nodes[: random.integers(1, len(nodes) + 1)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


MUTATIONS: tuple[Callable[[ModelProto, Random], None], ...] = (
    *(change_attribute, change_attribute, change_inputs, change_inputs, change_operator, change_shape),
    *(change_initializer, change_version, add_function, reorder),
)
SETTINGS = (
    *(
        "[reduce]\ntarget = 3\n",
        "dim = 'x'\n",
        "[dim]\nbatch = -1\n",
        "[dim]\nbatch = 99999999999999999999\n",
        "= 1",
    ),
    *(
        "target = ['nowhere']\n",
        "[budgets]\nflash = []\n",
        "\x00",
        "[budgets]\nflash = 1e400\n",
        "[[dim]]\nx = 1\n",
    ),
)


def damaged_model(data: bytes, random: Random) -> bytes:
    if random.random() < 0.2:
        return _damaged_bytes(data, random)
    model = ModelProto.FromString(data)
    for _ in range(random.integers(1, 4)):
        if model.graph.node:
            MUTATIONS[random.integers(len(MUTATIONS))](model, random)
    return model.SerializeToString()


def _damaged_bytes(data: bytes, random: Random) -> bytes:
    ways = (hostile.flip_bytes, hostile.replace_number, hostile.swap_numbers, hostile.cut)
    return ways[random.integers(len(ways))](data, random)


def damaged_checkpoint(data: bytes, random: Random) -> bytes:
    if random.random() < 0.5:
        return _damaged_bytes(data, random)
    return hostile.rewrite(checkpoint_schema())(data, random)


def prepare(number: int, folder: Path) -> Path:
    """The artifact set of a case, damaged, in `folder`."""
    random = np.random.default_rng(number)
    source = GOLDEN / str(random.choice(SETS))
    for file in source.iterdir():
        if file.name in FILES:
            shutil.copyfile(file, folder / file.name)
    victim = folder / str(random.choice([name for name in FILES if (folder / name).exists()]))
    if random.random() < 0.05:
        (folder / "minbuild.toml").write_text(str(random.choice(SETTINGS)))
        return folder
    data = victim.read_bytes()
    if victim.suffix == ".onnx":
        victim.write_bytes(damaged_model(data, random))
    else:
        victim.write_bytes(damaged_checkpoint(data, random))
    return folder


def run(number: int) -> str:
    """What comes of a case: "" where it ends as it should, else a line."""
    with tempfile.TemporaryDirectory(prefix="minbuild-readers-") as name:
        folder = prepare(number, Path(name))
        try:
            if (folder / "minbuild.toml").exists():
                read_settings(folder / "minbuild.toml")
            scan(folder)
            compile_model(folder, {}, {})
        except MinbuildError:
            return ""
        except MemoryError:
            return "more than 1 GB"
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {str(error)[:120]} ({Path(last.filename).name}:{last.lineno})"
    return ""


def worker(first: int, count: int, results: Any) -> None:
    """Cases one after the other, each with the limits; the number comes first, so that a crash can be told."""
    resource.setrlimit(
        resource.RLIMIT_DATA, (3 * BYTES, 3 * BYTES)
    )  # the interpreter and its libraries, and 1 GB
    for number in range(first, first + count):
        results.put((number, None))
        signal.alarm(SECONDS + 1)
        began = time.monotonic()
        outcome = run(number)
        signal.alarm(0)
        taken = time.monotonic() - began
        results.put((number, outcome or (f"{taken:.1f} s" if taken > SECONDS else "")))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    share = -(-options.count // options.jobs)
    spans = [(options.first + i * share, min(share, options.count - i * share)) for i in range(options.jobs)]
    findings: dict[int, str] = {}
    with multiprocessing.get_context("fork").Manager() as manager:
        results = manager.Queue()
        processes = []
        for first, count in spans:
            process = multiprocessing.get_context("fork").Process(
                target=_restarting, args=(first, count, results)
            )
            process.start()
            processes.append(process)
        for process in processes:
            process.join()
        pending: set[int] = set()
        while not results.empty():
            number, outcome = results.get()
            if outcome is None:
                pending.add(number)
            else:
                pending.discard(number)
                if outcome:
                    findings[number] = outcome
        findings |= dict.fromkeys(pending, "crash, or more than 10 s")
    for number, outcome in sorted(findings.items()):
        print(f"{number}: {outcome}")
    places = Counter(o.rpartition("(")[2] if "(" in o else o for o in findings.values())
    for place, times in places.most_common(40):
        print(f"  {times:5} {place}")
    if options.json:
        options.json.write_text(json.dumps({"files": options.count, "findings": len(findings)}) + "\n")
    print(f"{options.count - len(findings)} passed, {len(findings)} failed")
    return 1 if findings else 0


def _restarting(first: int, count: int, results: Any) -> None:
    """Cases of a span, in a new process behind each that dies."""
    context = multiprocessing.get_context("fork")
    end = first + count
    while first < end:
        seen = context.Value("q", first)
        process = context.Process(target=_counted, args=(first, end - first, results, seen))
        process.start()
        process.join()
        if process.exitcode == 0:
            return
        first = seen.value + 1


def _counted(first: int, count: int, results: Any, seen: Any) -> None:
    for number in range(first, first + count):
        seen.value = number
        worker(number, 1, results)


if __name__ == "__main__":
    sys.exit(main())
