"""Time of a training step in Node beside this machine's own library, in turns within one run: reports/baseline/wasm.md.

    python tests/slow/measure_wasm.py [--batch N] [--turns N] FOLDER...

Each FOLDER has training artifacts. Every turn measures the native library (one thread), `wasm32` and
`wasm32-relaxed-simd` one after the other; of each the shortest step of all turns counts. Ratios are to the native one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from minbuild.options.plan_options import PlanOptions  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch  # noqa: E402
from minbuild.toolchain import host_target  # noqa: E402
from minbuild.training.library import TRAIN, Library, Session  # noqa: E402

MODULES = ("wasm32", "wasm32-relaxed-simd")
FLAG = "--experimental-wasm-relaxed-simd"  # of Node before 22
SECONDS = 1.0  # that a turn takes, about


def reduced(folder: Path, out: Path) -> None:
    targets = [word for name in (str(host_target()), *MODULES) for word in ("--target", name)]
    command = [sys.executable, "-m", "minbuild", "reduce", str(folder), "--out", str(out), *targets]
    subprocess.run(
        [*command, "--no-analysis", "--bindings", "js", "--threads", "off"], check=True, capture_output=True
    )


def native_step(session: Session, inputs: list[np.ndarray]) -> float:
    since = time.perf_counter()
    session.run(TRAIN, inputs)
    session.optimizer_step()
    session.lazy_reset_grad()
    return 1000 * (time.perf_counter() - since)


def row(folder: Path, batch: int, turns: int, work: Path) -> str:
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
    (work / "feeds.json").write_text(json.dumps(written))
    library = Library(next((package / "lib" / str(host_target())).glob("*.so")))
    session = Session(library, model.plan_bytes, model.checkpoint, [batch] * len(model.plan.symbols))
    steps = max(5, int(1000 * SECONDS / min(native_step(session, inputs) for _ in range(3)) / 3))
    found = {name: [] for name in ("native", *MODULES)}
    flags = (
        [FLAG]
        if subprocess.run(["node", FLAG, "-e", ""], capture_output=True, check=False).returncode == 0
        else []
    )
    for _ in range(turns):
        found["native"].append(min(native_step(session, inputs) for _ in range(steps)))
        for name in MODULES:
            module = package / "lib" / name / "minbuild.wasm"
            script = Path(__file__).with_name("wasm_steps.mjs")
            command = ["node", *flags, script, package, module, work / "feeds.json", str(steps)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name].append(float(done.stdout))
    session.close()
    best = {name: min(times) for name, times in found.items()}
    ratios = (f"{best[name] / best['native']:.2f}" for name in MODULES)
    return f"| {folder.name} | {batch} | {best['native']:.3f} ms | {' | '.join(ratios)} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("folders", nargs="+", type=Path)
    given = parser.parse_args()
    print(f"| net | batch | native | {' | '.join(MODULES)} |\n|{'---|' * (3 + len(MODULES))}")
    for folder in given.folders:
        with tempfile.TemporaryDirectory() as work:
            print(row(folder, given.batch, given.turns, Path(work)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
