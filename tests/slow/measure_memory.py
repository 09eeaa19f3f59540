"""The least memory that `--ram` trains in, beside the default plan and goals: reports/baseline/memory.md.

    python tests/slow/measure_memory.py --work FOLDER [--torch PYTHON] [--ort PYTHON] [--resume] [NAME...]

A NAME is a network of large_nets.py, whose artifacts are made as bench_large.py makes them where FOLDER lacks them, or
a recorded set (bert_tiny, mobilenet_tl_bn). For one image or sequence the row has the temporaries of the default plan,
of the plan for the goal, and of the smallest one, with estimated and measured time of a training step beside that of
the default plan: processor time on one thread, the best of turns of all three. Sets are measured at the batch that
their memory beside ONNX Runtime is recorded at (speed.md). --resume keeps rows whose default plans are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support"), str(HERE.parents[2])]

import bench_large  # noqa: E402
import numpy as np  # noqa: E402
from case_sets import SHARED, loaded  # noqa: E402
from large_race import Failed  # noqa: E402

from minbuild.codegen.library_builder import build_checked  # noqa: E402
from minbuild.errors import OverBudget  # noqa: E402
from minbuild.options.build_options import BuildOptions  # noqa: E402
from minbuild.options.plan_options import PlanOptions  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.compiled_model import CompiledModel  # noqa: E402
from minbuild.planning.kernel_selection import contents_of  # noqa: E402
from minbuild.planning.ram_budget import ram_of  # noqa: E402
from minbuild.toolchain import find_toolchain, host_target  # noqa: E402
from minbuild.training.library import TRAIN, Library, Session  # noqa: E402

REPORT = HERE.parents[2] / "reports" / "baseline" / "memory.md"
NAMES = ("MobileNetV2", "ResNet-18", "ResNet-50", "EfficientNet-B0", "BERT-base", "ViT-Tiny")
GOALS = dict(zip(NAMES, (7.6, 5.0, 19.3, 7.6, 12.6, 5.1), strict=True))  # MB, plus 15 %
SETS = {"bert_tiny": 8, "mobilenet_tl_bn": 32}  # batch
TURNS = 16


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--torch", type=Path)
    parser.add_argument("--ort", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("names", nargs="*", default=[*NAMES, *SETS])
    options = parser.parse_args()
    failed = 0
    for name in options.names:
        try:
            row(name, options)
        except (Failed, OSError) as error:
            failed = 1
            print(f"FAILED {name}: {error}", file=sys.stderr)
        write(options.work)
    return failed


def row(name: str, options: argparse.Namespace) -> None:
    """Measures one row and keeps it in the work folder."""
    folder, batch = options.work / name, SETS.get(name, 1)
    if name in SETS:
        artifacts = SHARED / name
        folder.mkdir(parents=True, exist_ok=True)
    else:
        artifacts = folder
        bench_large.make_artifacts(folder, name, bench_large.environments(options, options.work), (1, 8))
    sizes = {"batch": batch}
    fixed, largest = (sizes, {}) if batch == 1 else ({}, sizes)

    def plan(ram: int | None = None) -> CompiledModel:
        return compile_model(artifacts, fixed, largest, options=PlanOptions(ram=ram))

    since = time.process_time()
    usual = plan()
    digest = hashlib.sha256(usual.plan_bytes).hexdigest()
    kept = kept_row(options.work, name)
    if options.resume and kept.exists() and json.loads(kept.read_text())["digest"] == digest:
        return
    goal = int(GOALS[name] * 1.15e6) if name in GOALS else 0
    models = {"default": usual}
    persistent = usual.plan.persistent_bytes
    if goal:
        models["fitting"] = within(plan, persistent + goal)
    try:
        plan(persistent + 1)
    except OverBudget as error:
        found = re.search(r"takes ([\d,]+) bytes of RAM", str(error))
        assert found is not None
        models["least"] = plan(int(found[1].replace(",", "")))
    planning = time.process_time() - since
    times = measured(models, artifacts if name in SETS else folder, batch)
    result = {"net": name, "batch": batch, "goal": goal, "digest": digest, "planning": planning}
    for key, model in models.items():
        result[key] = {
            "arena": ram_of(model.plan, model.largest) - persistent,
            "estimate": 1 + model.fitted.added_time if model.fitted else 1,
            "time": times[key] / times["default"],
            "ms": 1000 * times[key],
        }
    kept.write_text(json.dumps(result))
    print(line(result), flush=True)


def kept_row(work: Path, name: str) -> Path:
    """The file that a row is kept in."""
    return work / name / "memory.json"


def within(plan, budget: int) -> CompiledModel:
    """The plan for a budget, or the smallest one where none fits."""
    try:
        return plan(budget)
    except OverBudget as error:
        found = re.search(r"takes ([\d,]+) bytes of RAM", str(error))
        assert found is not None
        return plan(int(found[1].replace(",", "")))


def measured(models: dict[str, CompiledModel], folder: Path, batch: int) -> dict[str, float]:
    """Seconds of a training step, for each; equal plans are measured once."""
    sessions: dict[str, Session] = {}
    same = {
        key: next(k for k, m in models.items() if m.plan_bytes == models[key].plan_bytes) for key in models
    }
    for key in dict.fromkeys(same.values()):
        model = models[key]
        built = build_checked(
            contents_of([model], build_options=BuildOptions()),
            model.registry,
            host_target(),
            find_toolchain(None, None, BuildOptions()),
        )
        library = Library(loaded(built.built.shared)[0])
        sessions[key] = Session(library, model.plan_bytes, model.checkpoint, list(model.largest.values()))
    batches = given(folder, batch, next(iter(models.values())))
    best = dict.fromkeys(sessions, float("inf"))
    for _ in range(TURNS):
        for key, session in sessions.items():
            since = time.process_time()
            session.run(TRAIN, batches)
            session.lazy_reset_grad()
            best[key] = min(best[key], time.process_time() - since)
    for session in sessions.values():
        session.close()
    return {key: best[first] for key, first in same.items()}


def given(folder: Path, batch: int, model: CompiledModel) -> list[np.ndarray]:
    """A batch in the order of the training graph's inputs."""
    recorded = folder / "reference.npz"
    if recorded.exists():
        from case_sets import load

        return load(folder).samples(batch)
    with np.load(folder / f"batch_{batch}.npz") as arrays:
        return [arrays[name] for name, _ in model.plan.routines[0].inputs]


HEAD = ("net", "batch", "default MB", "goal MB", "for the goal: MB", "time", "estimate", "least MB", "time")
HEAD += ("estimate", "planning s")
PREFACE = """\
Temporaries of a training step (AdamW, float32; millions of bytes of the arena): of the default plan, of the one that
`--ram` finds for the goal (within 1.15 of what one more forward pass allows), and of the smallest. Times are those of
the step beside the default plan's: processor time on one thread, and the estimate that the plan was chosen by. Planning
is the processor time that all of these plans took. Where no plan reaches the goal, the smallest one stands there.
"""


def line(result: dict) -> str:
    def cells(key: str) -> list[str]:
        each = result.get(key)
        if each is None:
            return ["", "", ""]
        return [f"{each['arena'] / 1e6:.2f}", f"{each['time']:.2f}", f"{each['estimate']:.2f}"]

    goal = f"{result['goal'] / 1e6:.1f}" if result["goal"] else ""
    named = [result["net"], str(result["batch"]), f"{result['default']['arena'] / 1e6:.2f}", goal]
    return "| " + " | ".join([*named, *cells("fitting"), *cells("least"), f"{result['planning']:.0f}"]) + " |"


def write(work: Path) -> None:
    """The report, of all rows in the work folder."""
    kept = [kept_row(work, name) for name in (*NAMES, *SETS)]
    rows = [json.loads(path.read_text()) for path in kept if path.exists()]
    if not rows:
        return
    table = ["| " + " | ".join(HEAD) + " |", "|---|" + "--:|" * (len(HEAD) - 1), *map(line, rows)]
    missing = [name for name, path in zip((*NAMES, *SETS), kept, strict=True) if not path.exists()]
    absent = [f"- Not measured: {', '.join(missing)}."] if missing else []
    beside = [text for r in rows if r["net"] in SETS and (text := beside_ort(r))]
    REPORT.write_text("\n".join([PREFACE, *table, "", *beside, *absent]).rstrip() + "\n", "utf-8")


def beside_ort(result: dict) -> str:
    """The memory of ONNX Runtime's training step, as speed.md has it."""
    for each in REPORT.with_name("speed.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in each.split("|")[1:-1]]
        if cells[:2] == [result["net"], str(result["batch"])]:
            return (
                f"- {result['net']}, batch {result['batch']}: training adds {cells[5]} MB to a process with ONNX "
                f"Runtime, {cells[6]} with minbuild's default plan."
            )
    return ""


if __name__ == "__main__":
    sys.exit(main())
