"""How far the work of a training step is divided among threads, and what that costs: reports/baseline/threads.md.

    python tests/slow/measure_threads.py [--batches N,N] [--time] [--sizes] FOLDER...

Each FOLDER has training artifacts and, as `batch_N.npz` in it or one folder up, a batch of N samples, the arrays in the
order of the model's inputs (`bench_large.py --work FOLDER` leaves both). Libraries are built with and without threads.

The time of every part of every kernel is counted by processor time, so it does not depend on what else the machine
does: a library that records it (thread_times.py) runs all of them on one thread. From that follow the share of a step
that is divided, and what 2, 4 and 8 equal cores would give that share the parts, uneven as they are, if memory
keeps up. --time measures 1 and 2 threads besides, in turns, best of each: by the wall clock, and what the processor
time grows by. The machine's load meanwhile stands beside it: with more processes than cores the wall clock shows those,
not the threads. --sizes counts bytes alone, in the rows that the page has, and leaves their other columns.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import cached_property
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from thread_times import recording_library, step_times  # noqa: E402

from minbuild.analysis.attribution import attribute  # noqa: E402
from minbuild.analysis.categories import Owner  # noqa: E402
from minbuild.codegen.library_builder import BuiltLibrary, build_checked  # noqa: E402
from minbuild.options.build_options import BuildOptions  # noqa: E402
from minbuild.options.plan_options import PlanOptions  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.kernel_selection import contents_of  # noqa: E402
from minbuild.toolchain import find_toolchain, host_target  # noqa: E402
from minbuild.training.library import TRAIN, Library, Session, arena_size  # noqa: E402

THREADS = 8
CORES = (2, 4, 8)
CPUS = os.cpu_count()
THREADS_CC = Owner("runtime", "threads")
DIVISION = ("run_divided(", "run_part(")  # functions of it that cut calls; the others fork and join
HEADER = (
    "net", "batch", "library", "with threads", "fork and join", "division", "session", "with threads",
    "divided", *(f"{n} cores" for n in CORES), "measured, 2", "processor time, 2", "load",
)  # fmt: skip
TIMES = 4 + len(CORES)  # columns of HEADER
PAGE = ROOT / "reports/baseline/threads.md"
INTRODUCTION = f"""# Threads

Written by `python tests/slow/measure_threads.py`: bytes of the library and of a session, without threads and with
{THREADS}; bytes that the fork and join itself takes of the library, and the division of kernels' calls (both of
`kernels/runtime/threads.cc`, as the size report attributes them: the other bytes that threads add are in kernels which
divide their own work, and in the session); the share of a training step (forward, backward and update) that is divided
among threads, by processor time; how many times faster a step is on so many equal cores that share the parts,
uneven as they are, if memory keeps up; and, where it was measured (`--time`), how many times faster two threads were
than one by the wall clock, how many times the processor time that took, and the machine's load meanwhile (processes
that ran or waited to run, these measurements among them): with more than it has cores, the wall clock says little.

"""


def bytes_of_threads(library: BuiltLibrary) -> tuple[int, int]:
    """The bytes of `kernels/runtime/threads.cc` in a library: of the fork and join, and of the division of calls."""
    found = attribute(library.binary, library.owners, library.kernels).shares
    pieces = [piece for share in found if share.owner == THREADS_CC for piece in share.pieces]
    cut = sum(p.bytes for p in pieces if any(f in name for name in p.names for f in DIVISION))
    return sum(piece.bytes for piece in pieces) - cut, cut


class Built:
    """A library and its plan."""

    def __init__(self, folder: Path, threads: str, work: Path) -> None:
        options = BuildOptions(threads=threads)
        model = compile_model(folder, {}, {}, options=PlanOptions(threads=threads))
        self.contents, self.registry = contents_of([model], build_options=options), model.registry
        self.toolchain = find_toolchain(None, None, options)
        library = build_checked(self.contents, self.registry, host_target(), self.toolchain)
        self.path = work / f"{threads}.so"
        self.path.write_bytes(library.built.shared)
        self.library, self.bytes = Library(self.path), len(library.built.shared)
        self.fork_join, self.division = bytes_of_threads(library)
        self.plan, self.checkpoint, self.symbols = model.plan_bytes, model.checkpoint, len(model.plan.symbols)

    def session(self, batch: int, library: Library | None = None, **options: object) -> Session:
        sizes = [batch] * self.symbols
        return Session(library or self.library, self.plan, self.checkpoint, sizes, **options)  # type: ignore[arg-type]

    @cached_property
    def recording(self) -> Library:
        """The library that records times: one for all batches, since its file must not change while it is loaded."""
        path = self.path.with_suffix(".recording.so")
        return recording_library(self.contents, self.registry, self.toolchain, path)

    def memory(self, batch: int) -> int:
        return arena_size(self.library, self.plan, [batch] * self.symbols)


def step(session: Session, inputs: list[np.ndarray]) -> None:
    session.run(TRAIN, inputs)
    session.optimizer_step()
    session.lazy_reset_grad()


def divided(built: Built, batch: int, inputs: list[np.ndarray]) -> tuple[float, list[float]]:
    """The share of the processor time of a step that is spent in parts, and how many times faster it is on each number
    of CORES."""
    library = built.recording
    names = [kernel.symbol for kernel in built.contents.kernels]
    gains = []
    for cores in CORES:
        session = built.session(batch, library, threads=cores)
        times = step_times(library, names, lambda session=session: step(session, inputs))
        gains.append(times.total / sum(times.longest.values()))
        session.close()
    return times.divided, gains


def gain(built: Built, batch: int, inputs: list[np.ndarray]) -> tuple[float, float]:
    """How many times faster two threads are than one by the wall clock, and how many times the processor time."""
    sessions = [built.session(batch, threads=n) for n in (1, 2)]
    wall, used = [np.inf, np.inf], [np.inf, np.inf]
    for _ in range(8):
        for i, session in enumerate(sessions):
            since, before = time.perf_counter(), time.process_time()
            step(session, inputs)
            wall[i] = min(wall[i], time.perf_counter() - since)
            used[i] = min(used[i], time.process_time() - before)
    for session in sessions:
        session.close()
    return float(wall[0] / wall[1]), float(used[1] / used[0])


def name_of(folder: Path) -> str:
    return folder.parent.name if folder.name == "art" else folder.name


def sizes(bare: Built, built: Built, batch: int) -> list[str]:
    """The columns of bytes."""
    library = (bare.bytes, built.bytes, built.fork_join, built.division)
    counts = (*library, bare.memory(batch), built.memory(batch))
    return [f"{n:,}" for n in counts]


def times(folder: Path, built: Built, batch: int, timed: bool) -> list[str]:
    """The columns of times."""
    places = (folder / f"batch_{batch}.npz", folder.parent / f"batch_{batch}.npz")
    with np.load(next(p for p in places if p.is_file())) as arrays:
        inputs = [arrays[name] for name in arrays.files]
    share, gains = divided(built, batch, inputs)
    most = [f"{gain:.2f}" for gain in gains]
    measured = ["-"] * 3
    if timed:
        measured = [f"{n:.2f}" for n in gain(built, batch, inputs)] + [
            f"{os.getloadavg()[0]:.0f} of {CPUS} cores"
        ]
    return [f"{100 * share:.1f} %", *most, *measured]


def times_before() -> dict[tuple[str, str], list[str]]:
    """The columns of times in the page, by the net and the batch of a row."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {(cells[0], cells[1]): cells[-TIMES:] for cells in rows[1:]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", default="1")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--sizes", action="store_true", help="bytes alone; the page's times stay")
    parser.add_argument("folders", nargs="+", type=Path)
    given = parser.parse_args()
    import tempfile

    before = times_before() if given.sizes else {}
    lines = [f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}"]
    with tempfile.TemporaryDirectory() as work:
        for number, folder in enumerate(given.folders):
            own = Path(work) / str(number)
            own.mkdir()
            bare, built = (Built(folder, threads, own) for threads in ("off", str(THREADS)))
            for batch in map(int, given.batches.split(",")):
                cells = [name_of(folder), str(batch), *sizes(bare, built, batch)]
                cells += before[cells[0], cells[1]] if before else times(folder, built, batch, given.time)
                lines.append(f"| {' | '.join(cells)} |")
                print(lines[-1], flush=True)
    PAGE.write_text(INTRODUCTION + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
