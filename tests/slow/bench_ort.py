"""Step times and memory of built trainers, side by side with ONNX Runtime.

    python tests/slow/bench_ort.py [--ort-python PYTHON] [--batches 1,8,32] [--seconds 4] [NAME...]

All run in one process of an environment with onnxruntime-training-cpu 1.19.2 (made for the purpose when none
is given), with one thread, in turns of a few milliseconds, so that whatever the machine does hits them alike;
times are medians over turns of train step, optimizer step and reset. The trainer is that of a build without options;
the last columns are of `minbuild reduce --profile fastest`. Memory is what a fresh process needs on
top of what it had after its imports, at its highest. ONNX Runtime is used through its Python API, the trainer
through its C API.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "golden"), str(ROOT)]
TURN = 0.02  # seconds
# So small that no parameter changes: thousands of steps on one batch would lead to gradients that are subnormal, which
# slow ONNX Runtime down, or to logarithms of zero.
RATE = 1e-12


def main() -> int:
    options = _options()
    from make_artifacts import prepare  # an environment that the golden sets are made with serves here too

    with tempfile.TemporaryDirectory(prefix="minbuild-bench-") as name:
        place = Path(name)
        python = options.ort_python or prepare(place / "env", options.python)
        rows = [row for case in _packages(options, place) for row in _measure(case, Path(python), options)]
    text = _table(rows)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0 if all(row["ratio"] <= 1 for row in rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ort-python", type=Path, help="Python with onnxruntime-training-cpu 1.19.2")
    parser.add_argument(
        "--python", default="python3.11", help="Python 3.8 to 3.11 to make an environment with"
    )
    parser.add_argument("--batches", type=lambda s: [int(b) for b in s.split(",")], default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=4, help="of measuring per case and batch")
    parser.add_argument("--out", type=Path)
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def _packages(options: argparse.Namespace, place: Path) -> list[Path]:
    """A folder per case with library, plan, parameters' places and artifacts."""
    import numpy as np
    from case_sets import folders, load, trainer

    from minbuild.errors import Unsupported

    # The golden sets are miniatures: without names, only the larger cases say something about speed.
    paths = [
        p for p in folders() if (p.name in options.names if options.names else p.parent.name != "golden")
    ]
    made = []
    for path in paths or [p for p in folders() if not options.names]:
        try:
            built = trainer(path)
        except Unsupported as error:
            print(f"{path.name}: not supported: {str(error)[:100]}", file=sys.stderr)
            continue
        folder = place / path.name
        folder.mkdir()
        (folder / "trainer.so").write_bytes(built.path.read_bytes())
        (folder / "trainer.plan").write_bytes(built.data)
        _reduce(path, place / "fastest")
        (folder / "fastest.so").write_bytes(next((place / "fastest/lib").glob("*/*.so")).read_bytes())
        (folder / "fastest.plan").write_bytes(next((place / "fastest/model").glob("*.plan")).read_bytes())
        case = load(path)
        about = {
            "artifacts": str(path),
            "inputs": case.inputs,
            "names": case.meta["input_names"],
        }
        about |= {"fixed": len(case.batch(0)[0]) if case.fixed else 0, "symbols": len(built.plan.symbols)}
        (folder / "about.json").write_text(json.dumps(about))
        for size in options.batches:
            if about["fixed"] in (0, size):
                batch = dict(zip(case.inputs, map(np.ascontiguousarray, case.samples(size)), strict=True))
                np.savez(folder / f"batch_{size}.npz", **batch)
        made.append(folder)
    return made


def _reduce(artifacts: Path, out: Path) -> None:
    options = ("--profile", "fastest", "--threads", "off", "--no-analysis", "--force")
    command = [sys.executable, "-m", "minbuild", "reduce", str(artifacts), "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-3000:]}")


def _measure(folder: Path, python: Path, options: argparse.Namespace) -> list[dict]:
    about = json.loads((folder / "about.json").read_text())
    rows = []
    for batch in options.batches:
        if about["fixed"] not in (0, batch):
            continue
        row = {"case": folder.name, "batch": batch}
        row |= _ask(python, "times", folder, batch, options.seconds)
        row |= {f"{who}_memory": _ask(python, who, folder, batch, 0)["memory"] for who in ("ours", "ort")}
        row |= {"ratio": row["ours"] / row["ort"], "fastest_ratio": row["fastest"] / row["ort"]}
        rows.append(row)
        print(f"{folder.name} batch {batch}: {row['ratio']:.2f}", file=sys.stderr)
    return rows


def _ask(python: Path, what: str, folder: Path, batch: int, seconds: float) -> dict:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [str(python), str(HERE), "--worker", what, str(folder), str(batch), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _table(rows: list[dict]) -> str:
    lines = [
        "| case | batch | ORT ms | minbuild ms | ratio | ORT MB | minbuild MB | memory ratio | fastest ms | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        ours, ort = r["ours_memory"] / 1024, r["ort_memory"] / 1024
        cells = (f"{r['ort']:.4f}", f"{r['ours']:.4f}", f"{r['ratio']:.2f}", f"{ort:.1f}", f"{ours:.1f}")
        cells += (f"{ort / max(ours, 0.004):.1f}", f"{r['fastest']:.4f}", f"{r['fastest_ratio']:.2f}")
        lines.append(f"| {r['case']} | {r['batch']} | {' | '.join(cells)} |")
    means = [
        f"{math.exp(sum(math.log(r[key]) for r in rows) / len(rows)):.3f}; largest: {max(r[key] for r in rows):.2f}"
        for key in ("ratio", "fastest_ratio")
        if rows
    ]
    return "\n".join(
        [*lines, "", f"Geometric mean of the ratios: {'. With `--profile fastest`: '.join(means)}."]
    )


# ------------------------------------------------------------------- in the environment with ONNX Runtime


def worker(what: str, folder: str, batch: str, seconds: str) -> None:
    place, size = Path(folder), int(batch)
    about = json.loads((place / "about.json").read_text())
    batch = _batch(place, about, size)
    steps = {}
    if what in ("times", "ours"):
        from minbuild.training import library  # noqa: F401

        before = _start()
        steps["ours"] = _ours(place, about, size, batch)
    if what == "times":
        steps["fastest"] = _ours(place, about, size, batch, "fastest")
    if what in ("times", "ort"):
        _import_ort()
        before = _start()
        steps["ort"] = _ort(about, batch)
    if what == "times":
        print(json.dumps(_times(steps, float(seconds))))
        return
    (step,) = steps.values()
    for _ in range(10):
        step()
    print(json.dumps({"memory": _resident("VmHWM") - before}))


def _import_ort() -> None:
    """The training API alone: the package's own imports would bring PyTorch along, which takes 200 MB."""
    import types

    import onnxruntime

    package = types.ModuleType("onnxruntime.training")
    package.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
    sys.modules["onnxruntime.training"] = package
    import onnxruntime.training.api  # noqa: F401


def _start() -> int:
    """Makes the highest memory use start here; KiB in use now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def _resident(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0])


def _batch(place: Path, about: dict, size: int) -> list:
    import numpy as np

    with np.load(place / f"batch_{size}.npz") as arrays:
        return [arrays[name] for name in about["inputs"]]


def _ours(place: Path, about: dict, size: int, batch: list, name: str = "trainer"):
    import ctypes

    from minbuild.training.c_api import COptions, CSession, to_tensor
    from minbuild.training.library import TRAIN, Library

    library = Library(place / f"{name}.so")
    count, handle = len(batch), ctypes.POINTER(CSession)()
    sizes = (ctypes.c_int32 * about["symbols"])(*[size] * about["symbols"])
    options = COptions(None, 0, sizes, about["symbols"])
    files = (str(place / f"{name}.plan").encode(), f"{about['artifacts']}/checkpoint".encode())
    if library.create_from_files(*files, ctypes.byref(options), ctypes.byref(handle)):
        raise RuntimeError(options.error.decode())
    session = handle.contents
    session.progress.contents.learning_rate = RATE
    tensors = (type(to_tensor(batch[0])) * count)(*map(to_tensor, batch))
    run, optimizer = library.run, 2

    def step() -> None:
        if run(handle, TRAIN, tensors, count) or run(handle, optimizer, None, 0):
            raise RuntimeError(session.error.decode())
        session.replaces_gradients = 1

    return step


def _ort(about: dict, arrays: list):
    import onnxruntime
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = session.inter_op_num_threads = 1
    artifacts = Path(about["artifacts"])
    state = CheckpointState.load_checkpoint(str(artifacts / "checkpoint"))
    module = Module(str(artifacts / "training_model.onnx"), state, session_options=session)
    optimizer = Optimizer(str(artifacts / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(RATE)
    named = dict(zip(about["inputs"], arrays, strict=True))
    batch = [named[n] for n in module.input_names()]

    def step() -> None:
        module(*batch)
        optimizer.step()
        module.lazy_reset_grad()

    return step


def _times(steps: dict, seconds: float) -> dict:
    """Median milliseconds per step of each, measured in turns."""
    from statistics import median
    from time import perf_counter

    counts, turns = {}, {who: [] for who in steps}
    for who, step in steps.items():
        for _ in range(3):
            step()
        start = perf_counter()
        step()
        counts[who] = max(1, min(500, int(TURN / (perf_counter() - start + 1e-9))))
    until = perf_counter() + seconds
    while perf_counter() < until or len(turns["ort"]) < 5:
        for who, step in steps.items():
            step()  # brings its own data back into the caches
            start = perf_counter()
            for _ in range(counts[who]):
                step()
            turns[who].append((perf_counter() - start) / counts[who])
    return {who: 1000 * median(times) for who, times in turns.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
    else:
        sys.exit(main())
