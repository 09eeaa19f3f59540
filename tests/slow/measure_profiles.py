"""Bytes and step times of trainers in every profile: reports/baseline/profiles.md and profiles.json.

    python tests/slow/measure_profiles.py [--seconds 4] [--batch 8] [NAME...]

A step is training, the optimizer's update and the reset of gradients, called through the C API with one thread. The
profiles take turns of a few milliseconds, so that whatever the machine does hits all alike; times are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(ROOT)]
NAMES = ("mlp", "lenet", "mobilenetv2", "bert_tiny")
TURN = 0.02  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4, help="of measuring per case")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    from case_sets import folders

    names = options.names or NAMES
    rows = [_measure(folder, options.batch, options.seconds) for folder in folders() if folder.name in names]
    text = _table(rows, options.batch)
    sys.stdout.write(text)
    if not options.names:
        baseline = ROOT / "reports" / "baseline"
        (baseline / "profiles.md").write_text(text, "utf-8")
        (baseline / "profiles.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def _measure(folder: Path, batch: int, seconds: float) -> dict[str, object]:
    from minbuild.codegen.library_builder import build_checked
    from minbuild.options.build_options import OFF, PROFILES, in_profile
    from minbuild.pipeline import plan_options
    from minbuild.planning.compile import compile_model
    from minbuild.planning.kernel_selection import contents_of
    from minbuild.toolchain import find_toolchain, host_target

    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="minbuild-profiles-") as place:
        steppers = {}
        for profile in PROFILES:
            build_options = in_profile(profile)
            options = plan_options(replace(build_options, threads=OFF), [host_target()])
            model = compile_model(folder, {}, {}, options=options)
            contents = contents_of([model], build_options=build_options)
            toolchain = find_toolchain(build_options=build_options)
            built = build_checked(contents, model.registry, host_target(), toolchain).built
            path = Path(place) / f"{profile}.so"
            path.write_bytes(built.shared)
            found[profile] = {"bytes": len(built.shared)}
            steppers[profile] = _stepper(path, model, batch)
        for profile, median in _in_turns(steppers, seconds).items():
            found[profile]["milliseconds"] = round(1000 * median, 4)
    return {"case": folder.name, "batch": batch, "profiles": found}


def _stepper(path: Path, model, batch: int):
    """A function that trains one step."""
    from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch
    from minbuild.training.library import TRAIN, Library, Session, aligned_copy, arena_size

    library = Library(path)
    sizes = dict.fromkeys(model.plan.symbols, batch)
    most = tuple(sizes.values())
    arena = aligned_copy(bytes(arena_size(library, model.plan_bytes, most)))
    session = Session(library, model.plan_bytes, model.checkpoint, most, arena)
    limits, inputs = index_limits(model.program, model.registry), inputs_of(model.program)
    arrays = seeded_batch(inputs, limits, sizes, 0)
    train = next(p for p in model.program.procedures if p.name == "train")
    batch_arrays = [arrays[name] for name in train.inputs]

    def step() -> None:
        session.run(TRAIN, batch_arrays)
        session.optimizer_step()
        session.lazy_reset_grad()

    return step


def _in_turns(steppers, seconds: float) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for step in steppers.values():
        step()  # the first touches memory
    end = time.perf_counter() + seconds * len(steppers)
    while time.perf_counter() < end or not all(times.values()):
        for name, step in steppers.items():
            turn = time.perf_counter() + TURN
            while time.perf_counter() < turn:
                start = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def _table(rows: list[dict], batch: int) -> str:
    profiles = list(rows[0]["profiles"])
    head = ["case", *(f"{p}: bytes" for p in profiles), *(f"{p}: ms per step" for p in profiles)]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    for row in rows:
        each = [row["profiles"][p] for p in profiles]
        cells = [f"{e['bytes']:,}" for e in each] + [f"{e['milliseconds']:.3f}" for e in each]
        lines.append(f"| {row['case']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\nBatches of {batch}, one thread.\n"


if __name__ == "__main__":
    main()
