"""The cost of the checks that a trainer has by default, in bytes and in time: reports/baseline/safety.md.

    python tests/slow/measure_safety.py [NAME...]

Each option is turned off by itself, then all of them. Times are of a training and an optimizer step at batch 8, of all
libraries in turn; the median of the ratios counts, so that other work on the machine matters little. A checkpoint with
optimizer state is loaded with and without its checksum beside a copy of its bytes, the fastest of each.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(ROOT)]
BATCH, TURNS = 8, 200
OFF = {"rollback": "off", "finite_checks": "off", "denormals": "keep", "checkpoint_checks": "off"}
NAMES = ("mlp", "lenet", "lstm_cls", "mobilenetv2")


@dataclass
class Variant:
    """A library with some checks left out."""

    name: str
    size: int
    session: Any
    ratios: list[float] = field(default_factory=list)  # of the default's times by its own
    load: float = float("inf")  # seconds of the fastest


def main(names: list[str]) -> None:
    lines = [
        "# Cost of the checks of a trainer",
        "",
        f"`python tests/slow/measure_safety.py` wrote this file: x86-64 Linux, batch {BATCH}, median of {TURNS} turns "
        "on a machine with other work. Bytes of the library, and processor time of a training and an optimizer step, "
        "by which the default is above a library without the check; a few percent are noise.",
        "",
        "| model | library | without | bytes | time of a step |",
        "|---|--:|---|--:|--:|",
    ]
    loads = []
    for name in names or NAMES:
        whole, *lacking, copied, size = measure(name)
        for each in lacking:
            cost = f"{100 * (median(each.ratios) - 1):+.1f} %"
            lines.append(f"| {name} | {whole.size:,} B | {each.name} | {whole.size - each.size:,} | {cost} |")
        loads.append(f"| {name} | {size:,} B | {whole.load / copied:.1f} | {lacking[-1].load / copied:.1f} |")
    lines += ["", "Loading a checkpoint with optimizer state, in times that a copy of its bytes takes:", ""]
    lines += ["| model | checkpoint | with its checksum | without |", "|---|--:|--:|--:|", *loads]
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if not names:
        (ROOT / "reports/baseline/safety.md").write_text(text, "utf-8")


def measure(name: str) -> list[Any]:
    """The library of a case, those that lack a check, seconds of copying a checkpoint, and its bytes."""
    from case_sets import SHARED

    from minbuild.codegen.sources import emit_sources
    from minbuild.options.build_options import BuildOptions
    from minbuild.planning.compile import compile_model
    from minbuild.planning.kernel_selection import contents_of
    from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch
    from minbuild.toolchain import build_library, find_toolchain, host_target
    from minbuild.training.library import Library, Session

    model = compile_model(SHARED / name, {}, {})
    inputs, limits = inputs_of(model.program), index_limits(model.program, model.registry)
    arrays = seeded_batch(inputs, limits, dict.fromkeys(model.plan.symbols, BATCH), 0)
    batch = [arrays[n] for n in next(p for p in model.program.procedures if p.name == "train").inputs]
    choices = [
        ("", {}),
        *((f"`--{k.replace('_', '-')} {v}`", {k: v}) for k, v in OFF.items()),
        ("all four", OFF),
    ]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for title, off in choices:
            contents = contents_of([model], build_options=BuildOptions(**off))
            built = build_library(emit_sources(contents, model.registry), host_target(), find_toolchain())
            path = Path(folder) / f"{len(found)}.so"
            path.write_bytes(built.shared)
            sizes = [BATCH for _ in model.plan.symbols]
            session = Session(Library(path), model.plan_bytes, model.checkpoint, sizes)
            found.append(Variant(title, len(built.shared), session))
    saved = found[0].session.checkpoint(True)
    plain = np.frombuffer(saved, np.uint8)
    copied, random = float("inf"), np.random.default_rng(1)
    for _ in range(TURNS):
        # Each once a turn, so that all find as little of theirs in the caches.
        seconds = {found[i].name: step(found[i].session, batch) for i in random.permutation(len(found))}
        for each in found[1:]:
            each.ratios.append(seconds[""] / seconds[each.name])
        for each in (found[0], found[-1]):
            began = time.perf_counter()
            each.session.load(saved)
            each.load = min(each.load, time.perf_counter() - began)
        began = time.perf_counter()
        plain.copy()
        copied = min(copied, time.perf_counter() - began)
    return [*found, copied, len(saved)]


def step(session: Any, batch: list[np.ndarray]) -> float:
    """Seconds of a processor for a training and an optimizer step."""
    began = time.thread_time()
    session.run(0, batch)
    session.optimizer_step()
    seconds = time.thread_time() - began
    session.lazy_reset_grad()
    return seconds


if __name__ == "__main__":
    main(sys.argv[1:])
