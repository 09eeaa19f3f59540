"""Time of a training step in Node beside this machine's own library, in turns within one run: reports/baseline/wasm.md.

    python tests/slow/measure_wasm.py [--batch N] [--turns N] [--node PROGRAM]... FOLDER...

Each FOLDER has training artifacts. Every turn measures the native library (one thread), the same without vectors that
WebAssembly lacks, and in each Node, `wasm32` and `wasm32-relaxed-simd` one after the other; the shortest step of all
turns counts. Nets that are not given keep their rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from wasm_page import GOAL, MODULES, NetResult, write_page  # noqa: E402

from minbuild.codegen.library_builder import build_checked  # noqa: E402
from minbuild.options.build_options import BuildOptions  # noqa: E402
from minbuild.options.plan_options import PlanOptions  # noqa: E402
from minbuild.planning.compile import CompiledModel, compile_model  # noqa: E402
from minbuild.planning.kernel_selection import contents_of  # noqa: E402
from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch  # noqa: E402
from minbuild.toolchain import find_toolchain, flags, host_target  # noqa: E402
from minbuild.training.library import TRAIN, Library, Session  # noqa: E402
from minbuild.verify.operator_times import multiplications, time_library  # noqa: E402
from minbuild.verify.step_script import step_order  # noqa: E402

FLAG = "--experimental-wasm-relaxed-simd"  # of Node before 22
SCRIPT = Path(__file__).with_name("wasm_steps.mjs")
SECONDS = 1.0  # that a turn takes, about
# Vectors of 128 bits, and products and sums in one instruction: what WebAssembly has with relaxed SIMD.
NARROW = ("-DMINBUILD_DISPATCH=0", "-mfma")


def reduced(folder: Path, out: Path) -> None:
    targets = [word for name in (str(host_target()), *MODULES) for word in ("--target", name)]
    command = [sys.executable, "-m", "minbuild", "reduce", str(folder), "--out", str(out), *targets]
    subprocess.run(
        [*command, "--no-analysis", "--bindings", "js", "--threads", "off"], check=True, capture_output=True
    )


def narrow(model: CompiledModel, work: Path) -> tuple[Library, float]:
    """The native library with vectors of 128 bits, and the multiplications and additions of float a nanosecond that
    this machine reaches in them. Needs x86-64."""
    options = BuildOptions(threads="off")
    contents = contents_of([model], build_options=options)
    toolchain = find_toolchain(None, None, options)
    with mock.patch.object(flags, "COMPILE", (*flags.COMPILE, *NARROW)):
        library = build_checked(contents, model.registry, host_target(), toolchain)
        timing = time_library({"": model}, library, host_target(), toolchain).timing
    if timing.reason:
        raise SystemExit(timing.reason)
    path = work / "narrow.so"
    path.write_bytes(library.built.shared)
    return Library(path), timing.peak_gflops


def operations(model: CompiledModel, batch: int) -> int:
    """The multiplications and additions of products and convolutions in a training step with its update."""
    sizes = dict.fromkeys(model.plan.symbols, batch)
    return 2 * sum(
        multiplications(routine.steps[number], model.plan, model.registry, sizes)
        for routine in model.plan.routines
        if routine.name in ("train", "optimize")
        for number in step_order(routine, model.plan, sizes)
    )


def shares(name: str, native: float, narrow_time: float, module: float, products: float) -> list[str]:
    """The lines on what the time of the faster module consists of; times are milliseconds."""
    if module <= GOAL * native:
        return []
    parts = (products, narrow_time - products, module - narrow_time)
    whole, *each = (f"{part / native:.2f}" for part in (module, *parts))
    parts_text = " + ".join(each).replace("+ -", "- ")
    faster = f"{narrow_time / (GOAL * native):.2f}"
    return [
        f"* {name}: {whole} = {parts_text}. At {GOAL} it would be {faster} times as fast as native code with",
        "  vectors of 128 bits.",
    ]


def native_step(session: Session, inputs: list[np.ndarray]) -> float:
    since = time.process_time()
    session.run(TRAIN, inputs)
    session.optimizer_step()
    session.lazy_reset_grad()
    return 1000 * (time.process_time() - since)


@dataclass(frozen=True, slots=True)
class Engine:
    """A program of Node: its name in the table, and the options that relaxed SIMD needs."""

    program: str
    name: str
    options: tuple[str, ...]


def engine_of(program: str) -> Engine:
    """The engine of `program`, a Node."""
    version = (
        "`Node ${process.versions.node.split('.')[0]}, V8 ${process.versions.v8.split('.', 2).join('.')}`"
    )
    name = subprocess.run([program, "-p", version], check=True, capture_output=True, text=True).stdout.strip()
    flagged = subprocess.run([program, FLAG, "-e", ""], capture_output=True, check=False).returncode == 0
    return Engine(program, name, (FLAG,) if flagged else ())


def module_step(engine: Engine, package: Path, module: str, feeds: Path, steps: int) -> float:
    """Milliseconds of the shortest of some steps of a package's module."""
    wasm = package / "lib" / module / "minbuild.wasm"
    command = [engine.program, *engine.options, *map(str, (SCRIPT, package, wasm, feeds, steps))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(folder: Path, batch: int, turns: int, engines: Sequence[Engine], work: Path) -> NetResult:
    """The rows of a net, one for each engine, and what their times consist of where they are above the goal."""
    package = work / "dist"
    reduced(folder, package)
    model = compile_model(folder, {}, {}, options=PlanOptions(threads="off"))
    sizes = dict.fromkeys(model.program.symbols, batch)
    limits = index_limits(model.program, model.registry)
    feeds = seeded_batch(inputs_of(model.program), limits, sizes, 1)
    names = [name for name in model.program.procedures[0].inputs if name in feeds]
    inputs = [feeds[name] for name in names]
    written = {
        n: {"type": str(a.dtype), "dims": a.shape, "data": a.ravel().tolist()} for n, a in feeds.items()
    }
    feeds_file = work / "feeds.json"
    feeds_file.write_text(json.dumps(written))
    narrow_library, peak = narrow(model, work)
    library = Library(next((package / "lib" / str(host_target())).glob("*.so")))
    sessions = {
        name: Session(code, model.plan_bytes, model.checkpoint, [batch] * len(model.plan.symbols))
        for name, code in (("native", library), ("narrow", narrow_library))
    }
    shortest = min(native_step(sessions["native"], inputs) for _ in range(3))
    steps = max(5, int(1000 * SECONDS / shortest / 3))
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(turns):
        for name, session in sessions.items():
            found[name, ""].append(min(native_step(session, inputs) for _ in range(steps)))
        for engine, name in product(engines, MODULES):
            found[name, engine.name].append(module_step(engine, package, name, feeds_file, steps))
    for session in sessions.values():
        session.close()
    best = {key: min(times) for key, times in found.items()}
    bases = [best[name, ""] for name in sessions]
    lines: list[str] = []
    notes: list[str] = []
    floor = operations(model, batch) / peak / 1e6
    for engine in engines:
        ratios = [f"{best[name, engine.name] / base:.2f}" for base in bases for name in MODULES]
        cells = (folder.name, str(batch), engine.name, *(f"{base:.3f} ms" for base in bases), *ratios)
        lines.append(f"| {' | '.join(cells)} |")
        notes += shares(
            f"{folder.name}, {engine.name}", bases[0], bases[1], best[MODULES[1], engine.name], floor
        )
    return NetResult(tuple(lines), tuple(notes))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--node", action="append", metavar="PROGRAM", help="Repeatable. Default: node")
    parser.add_argument("folders", nargs="+", type=Path)
    given = parser.parse_args()
    engines = [engine_of(program) for program in given.node or ["node"]]
    measured: dict[str, NetResult] = {}
    for folder in given.folders:
        with tempfile.TemporaryDirectory() as work:
            found = measure(folder, given.batch, given.turns, engines, Path(work))
        print(*found.rows, *found.notes, sep="\n", flush=True)
        measured[folder.name] = found
    page = ROOT / "reports/baseline/wasm.md"
    page.write_text(write_page(page.read_text(), measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
