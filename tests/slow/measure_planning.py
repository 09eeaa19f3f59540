"""Processor time of planning over the number of forward nodes: reports/baseline/planning.md.

    python tests/slow/measure_planning.py [--shape SHAPE] [--once] [NODES...]

A deep chain of deep_chains.py is generated, `minbuild artifacts` makes its training artifacts, and everything up to the
encoded plan is timed, each in a fresh process that did the same for a few nodes before, so that imports and tables of
operators do not count. A single run varies by half on a shared machine, and slow times of it last for seconds: planning
is timed in rounds over all sizes, small ones several times in each, and the least time counts. The goals: time per node
at 10,000 nodes within 20 % of that at 300, at most 60 s at 10,000 nodes, and at most 30 s for the artifacts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from deep_chains import SHAPES, chain

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]
SIZES = (300, 1_000, 3_000, 10_000)  # forward nodes
PLANNING, ARTIFACTS = 60.0, 30.0  # seconds of processor time at the largest size
SLACK = 1.2  # of the time per node, between the smallest and the largest size
ROUNDS = 3
SMALL, REPEATED = 1_000, 3  # so many nodes and fewer are planned so often in each round
WARM = 30  # nodes that a process begins with
HEAD = (
    "| chain | forward nodes | artifacts, s | planning, s | ms per node | memory, MB | steps | plan, bytes |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|"
)
_T = TypeVar("_T")


class Planned(NamedTuple):
    """A run: seconds of processor time, the peak of the resident set in MB, and the size of the plan."""

    seconds: float
    memory: int
    steps: int
    size: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: all")
    parser.add_argument("--once", action="store_true", help="plan each size once, and write no report")
    parser.add_argument("nodes", nargs="*", type=int, help=f"default: {', '.join(map(str, SIZES))}")
    options = parser.parse_args()
    shapes, sizes = tuple(options.shape or SHAPES), tuple(options.nodes or SIZES)
    table = measured(shapes, sizes, options.once)
    sys.stdout.write(table)
    if not (options.nodes or options.shape or options.once):
        about = (
            f"Processor time on {platform.machine()}, in fresh processes that did the same for {WARM} nodes before: "
            f"one run for the artifacts, and for planning the least of {ROUNDS} runs, of {ROUNDS * REPEATED} up to "
            f"{SMALL:,} nodes. Goals: at most {PLANNING:.0f} s of planning and {ARTIFACTS:.0f} s for artifacts at "
            f"{SIZES[-1]:,} nodes, and {SLACK:.1f} times the time per node of {SIZES[0]} nodes."
        )
        path = ROOT / "reports" / "baseline" / "planning.md"
        path.write_text(f"{about}\n\n{table}", "utf-8")


def measured(shapes: Sequence[str], sizes: Sequence[int], once: bool) -> str:
    """The table of all `shapes` at these `sizes`, forward nodes, and the growth from the first to the last; of one run
    each if `once`."""
    made: dict[tuple[str, int], float] = {}
    runs: dict[tuple[str, int], list[Planned]] = {}
    with tempfile.TemporaryDirectory(prefix="minbuild-planning-") as name:
        folders = {(shape, nodes): Path(name, f"{shape}-{nodes}") for shape in shapes for nodes in sizes}
        for (shape, nodes), folder in folders.items():
            made[shape, nodes] = _in_process(seconds_of_artifacts, shape, nodes, folder)
        for _ in range(1 if once else ROUNDS):
            for (shape, nodes), folder in folders.items():
                for _ in range(REPEATED if nodes <= SMALL and not once else 1):
                    runs.setdefault((shape, nodes), []).append(_in_process(planned, shape, folder))
    least = {key: min(each) for key, each in runs.items()}
    rows = [
        f"| {shape} | {nodes:,} | {made[shape, nodes]:.1f} | {run.seconds:.1f} | {run.seconds * 1000 / nodes:.2f} | "
        f"{run.memory:,} | {run.steps:,} | {run.size:,} |"
        for (shape, nodes), run in least.items()
    ]
    first, last = sizes[0], sizes[-1]
    growth = [
        f"{shape} {least[shape, last].seconds / last / (least[shape, first].seconds / first):.2f}"
        for shape in shapes
    ]
    about = f"Time per node at {last:,} nodes over that at {first:,}: {', '.join(growth)}."
    return "\n".join((HEAD, *rows, "", about)) + "\n"


def _in_process(function: Callable[..., _T], *arguments: object) -> _T:
    """The result of `function` with `arguments`, computed in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def seconds_of_artifacts(shape: str, nodes: int, folder: Path) -> float:
    """Seconds of processor time for the training artifacts of a chain, which are written to `folder`."""
    with tempfile.TemporaryDirectory(prefix="minbuild-planning-") as name:
        write_artifacts(shape, WARM, Path(name))
    folder.mkdir()
    start = time.process_time()
    write_artifacts(shape, nodes, folder)
    return time.process_time() - start


def planned(shape: str, folder: Path) -> Planned:
    """A run of planning the artifacts in `folder`, of a chain of this `shape`."""
    from minbuild.planning.compile import compile_model

    with tempfile.TemporaryDirectory(prefix="minbuild-planning-") as name:
        write_artifacts(shape, WARM, Path(name))
        compile_model(Path(name), {}, {})
    start = time.process_time()
    model = compile_model(folder, {}, {})
    seconds = time.process_time() - start
    steps = sum(len(routine.steps) for routine in model.plan.routines)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Planned(seconds, memory, steps, len(model.plan_bytes))


def write_artifacts(shape: str, nodes: int, folder: Path) -> None:
    """The training artifacts of a chain of at most `nodes` forward nodes, with cross-entropy and AdamW."""
    from minbuild.authoring import Recipe, generate_artifacts

    path = folder / "chain.onnx"
    path.write_bytes(chain(shape, nodes).SerializeToString())
    generate_artifacts(path, folder, Recipe(loss="cross-entropy", optimizer="adamw"))
    path.unlink()


if __name__ == "__main__":
    main()
