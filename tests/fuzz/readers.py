"""Damaged files for the readers in Python: every run must end well or in an error that names what is wrong.

    python tests/fuzz/readers.py [--count 2000] [--first 0] [--jobs 2] [--json FILE]

Each case is one number: it chooses an artifact set, a file of it (`.onnx`, `.ort`, checkpoint, settings), and
structured mutations: attributes of other types and values, missing and swapped inputs, other operators, wrong ranks,
sizes, element types and versions, cut and changed bytes. The set is then scanned and compiled as `minbuild reduce`
would, up to the plan, with limits of 10 s of a processor and 1 GB. A finding is any exception but MinbuildError, a
crash, or a limit that is exceeded; each is printed with its number, which `--first NUMBER --count 1` repeats. Ends
with 1 if there is one. Many cases share a process, and one that dies is replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "support")]

import hostile  # noqa: E402
from authored import FORWARD  # noqa: E402
from case_sets import GOLDEN  # noqa: E402

from minbuild.analysis.budgets import parse_budgets  # noqa: E402
from minbuild.authoring import Recipe, Source, make_artifacts  # noqa: E402
from minbuild.cli.option_parsing import options_of  # noqa: E402
from minbuild.cli.progress import parse_sizes  # noqa: E402
from minbuild.cli.reduce import reduce  # noqa: E402
from minbuild.cli.settings_file import checked_settings, known_keys, resolve_build_options, settings_beside  # noqa: E402
from minbuild.errors import MinbuildError  # noqa: E402
from minbuild.frontend.checkpoint import schema as checkpoint_schema  # noqa: E402
from minbuild.frontend.onnx.reader import opset_in, read_model  # noqa: E402
from minbuild.frontend.ort_format.reader import schema as ort_schema  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.scan import scan  # noqa: E402

SECONDS, BYTES = 10, 1 << 30
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # folders of the cases: thousands of small files
MODELS = ("training_model", "eval_model", "optimizer_model")
FILES = ("checkpoint", *(f"{name}.{form}" for name in MODELS for form in ("onnx", "ort")))
# Golden sets, and more in ONNX Runtime's own format (name, loss, optimizer), as `minbuild artifacts --ort` writes them.
SETS = (
    "dense",
    "dense_fixed",
    "conv",
    "residual",
    "embedding",
    "transfer",
    "weighted",
    "dense_ort",
    "dense_ort",
)
WRITTEN = (
    ("conv", "cross-entropy", "adamw"),
    ("residual", "cross-entropy", "sgd"),
    ("mse", "mse", "adamw"),
)
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
    """Functions that call each other, mostly a few deep and twice each, or themselves."""
    deep = int(random.integers(1, 30 if random.random() < 0.1 else 8))
    opset = next((o.version for o in model.opset_import if o.domain == ""), 15)
    for i in range(deep):
        function = model.functions.add(name=f"f{i}", domain="local")
        function.input.append("a")
        function.output.append("b")
        function.opset_import.add(domain="", version=opset)
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
    *(change_initializer, change_initializer, change_version, add_function, reorder, reorder),
)
OPTIONS = options_of(reduce)
VALUES = (
    *(
        "3",
        "-1",
        "99999999999999999999",
        "1e400",
        "nan",
        "true",
        '"x"',
        '""',
        "[]",
        "{}",
        "[1, 'a']",
        '["batch=8"]',
    ),
    *("[[]]", "{ batch = -1 }", "{ batch = 8 }", "{ '' = 0 }", "1979-05-27", '"\\u0000"', '"../.."'),
)
HEADS = (
    "[budgets]",
    "[budgets.trainer]",
    "[[budgets]]",
    "[dim]",
    "[tool.minbuild]",
    "[tool.minbuild.budgets]",
)


def settings(random: Random) -> bytes:
    """A settings file: keys that exist, near ones and others, each with some value; often a table of budgets."""
    known = [*known_keys(OPTIONS), "libary_bytes", "dim.batch", "tool.minbuild.target", "''"]
    lines = [f"{random.choice(known)} = {random.choice(VALUES)}" for _ in range(random.integers(1, 5))]
    if random.random() < 0.5:
        lines.append(str(random.choice(HEADS)))
        names = ("library", "flash", "ram", "plan", "growth", "batch", "target")
        lines += [f"{random.choice(names)} = {random.choice(VALUES)}" for _ in range(random.integers(0, 4))]
    data = "\n".join(lines).encode()
    return _damaged_bytes(data, random) if random.random() < 0.3 else data


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


def damaged_ort(data: bytes, random: Random) -> bytes:
    if random.random() < 0.6:
        with contextlib.suppress(ValueError):  # what no member of its type can be
            return hostile.rewrite(ort_schema())(data, random)
    return _damaged_bytes(data, random)


@functools.cache
def sources() -> tuple[Mapping[str, bytes], ...]:
    """The files of each set."""
    found = [
        {name: (GOLDEN / chosen / name).read_bytes() for name in FILES if (GOLDEN / chosen / name).exists()}
        for chosen in SETS
    ]
    for name, loss, optimizer in WRITTEN:
        _, model = FORWARD[name].build()
        given = Source(read_model(model, Path("model.onnx")), opset_in(model), Path("model.onnx"))
        made = make_artifacts(given, Recipe(loss=loss, optimizer=optimizer, ort=True))
        found.append({n: data for n, data in made.files.items() if n in FILES and not n.endswith(".onnx")})
    return tuple(found)


def prepare(number: int, folder: Path) -> None:
    """The artifact set of a case, damaged, in `folder`."""
    random = np.random.default_rng(number)
    files = dict(sources()[random.integers(len(sources()))])
    if random.random() < 0.08:
        files["minbuild.toml"] = settings(random)
    else:
        victim = str(random.choice(sorted(files)))
        form = victim.rpartition(".")[2]
        damage = {"onnx": damaged_model, "ort": damaged_ort}.get(form, damaged_checkpoint)
        files[victim] = damage(files[victim], random)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def use(folder: Path, scans: bool) -> None:
    """What `minbuild scan`, where asked for, and `minbuild reduce` do with a folder before it builds."""
    found, path = settings_beside([folder], None)
    given = checked_settings(found, path, OPTIONS)
    resolve_build_options({}, given, given.get("profile"))
    parse_budgets(given.get("budgets", {}), path)
    if scans:
        scan(folder)
    sizes = [parse_sizes(f"--{option}", given.get(option)) for option in ("dim", "max-dim")]
    compile_model(folder, *sizes)


def run(number: int) -> str:
    """What comes of a case: "" where it ends as it should, else a line."""
    with tempfile.TemporaryDirectory(prefix="minbuild-readers-", dir=MEMORY) as name:
        prepare(number, Path(name))
        try:
            use(Path(name), scans=number % 4 == 0)
        except MinbuildError:
            return ""
        except MemoryError:
            return "more than 1 GB"
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {str(error)[:120]} ({Path(last.filename).name}:{last.lineno})"
    return ""


def worker(first: int, count: int, log: Path) -> None:
    """Cases one after the other, each with the limits. Their numbers go to the file `log` before they are tried, so
    that a crash can be told, and what comes of them after."""
    held = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")
    )
    most = int(held.split()[1]) * 1024 + BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with log.open("a", buffering=1) as results:
        for number in range(first, first + count):
            results.write(f"{number}\n")
            signal.setitimer(signal.ITIMER_PROF, SECONDS + 1)
            began = time.process_time()
            outcome = run(number)
            signal.setitimer(signal.ITIMER_PROF, 0)
            taken = time.process_time() - began
            outcome = outcome or (f"{taken:.1f} s" if taken > SECONDS else "")
            results.write(f"{number}\t{' '.join(outcome.split())}\n")


def cases_of(first: int, count: int, log: Path) -> None:
    """The cases of a span, in a new process behind each that dies."""
    context, end = multiprocessing.get_context("fork"), first + count
    while first < end:
        process = context.Process(target=worker, args=(first, end - first, log))
        process.start()
        process.join()
        if process.exitcode == 0:
            return
        last = log.read_text().splitlines()[-1]
        first = int(last.partition("\t")[0]) + 1


def outcomes(log: Path) -> dict[int, str]:
    """What came of each case of a span, by number: "" where it ended as it should."""
    found: dict[int, str] = {}
    for line in log.read_text().splitlines():
        number, done, outcome = line.partition("\t")
        found[int(number)] = outcome if done else "crash, or more than 10 s"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sources()  # before there are processes, which share it
    share = -(-options.count // options.jobs)
    found: dict[int, str] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        logs = [Path(name, str(i)) for i in range(options.jobs)]
        jobs: list[Future[None]] = []
        with ThreadPoolExecutor(options.jobs) as pool:
            for i, log in enumerate(logs):
                log.touch()
                count = max(0, min(share, options.count - i * share))
                jobs.append(pool.submit(cases_of, options.first + i * share, count, log))
        for job in jobs:
            job.result()
        for log in logs:
            found |= outcomes(log)
    taken = time.monotonic() - began
    assert len(found) == options.count, f"{len(found)} of {options.count} cases were tried"
    findings = {number: outcome for number, outcome in found.items() if outcome}
    for number, outcome in sorted(findings.items()):
        print(f"{number}: {outcome}")
    places = Counter(o.rpartition("(")[2] if "(" in o else o for o in findings.values())
    for place, times in places.most_common(40):
        print(f"  {times:5} {place}")
    if options.json:
        row = {"files": options.count, "findings": len(findings), "seconds": round(taken)}
        options.json.write_text(json.dumps(row) + "\n")
    print(f"{options.count - len(findings)} passed, {len(findings)} failed, {taken:.0f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
