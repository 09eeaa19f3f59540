"""Processor time of planning over the number of forward nodes: reports/baseline/planning.md.

    python tests/slow/measure_planning.py [--shape SHAPE] [--once] [NODES...]

A deep chain of deep_chains.py is generated, `minbuild artifacts` makes its training artifacts, and everything up to the
encoded plan is timed in one process. The goals: time per node at 10,000 nodes within 20 % of that at 300, at most 60 s
at 10,000 nodes, and at most 30 s for the artifacts.
"""

from __future__ import annotations

import argparse
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deep_chains import SHAPES, chain

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT)]
SIZES = (300, 1_000, 3_000, 10_000)  # forward nodes
PLANNING, ARTIFACTS = 60.0, 30.0  # seconds of processor time at the largest size
SLACK = 1.2  # of the time per node, between the smallest and the largest size
HEAD = (
    "| chain | forward nodes | artifacts, s | planning, s | ms per node | memory, MB | steps | plan, bytes |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|"
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: all")
    parser.add_argument("--once", action="store_true", help="measure in this process, and write no report")
    parser.add_argument("nodes", nargs="*", type=int, help=f"default: {', '.join(map(str, SIZES))}")
    options = parser.parse_args()
    shapes, sizes = tuple(options.shape or SHAPES), tuple(options.nodes or SIZES)
    if options.once:
        sys.stdout.writelines(f"{row(shape, nodes)}\n" for shape in shapes for nodes in sizes)
        return
    rows = [_in_process(shape, nodes) for shape in shapes for nodes in sizes]
    sys.stdout.write("\n".join((HEAD, *rows)) + "\n")
    if not options.nodes and not options.shape:
        about = (
            f"Processor time of one process on {platform.machine()}, one run each. Goals: at most {PLANNING:.0f} s of "
            f"planning and {ARTIFACTS:.0f} s for artifacts at {SIZES[-1]:,} nodes, and {SLACK:.1f} times the time per "
            f"node of {SIZES[0]} nodes."
        )
        path = ROOT / "reports" / "baseline" / "planning.md"
        path.write_text("\n".join((about, "", HEAD, *rows)) + "\n", "utf-8")


def _in_process(shape: str, nodes: int) -> str:
    """The row of one size, measured in a process of its own so that its peak memory is its own."""
    command = (sys.executable, str(HERE), "--once", "--shape", shape, str(nodes))
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def row(shape: str, nodes: int) -> str:
    """A table row: times in seconds of processor time, memory as the peak of the resident set."""
    from minbuild.planning.compile import compile_model

    with tempfile.TemporaryDirectory(prefix="minbuild-planning-") as name:
        start = time.process_time()
        write_artifacts(shape, nodes, Path(name))
        made = time.process_time()
        model = compile_model(Path(name), {}, {})
        planned = time.process_time()
    steps = sum(len(routine.steps) for routine in model.plan.routines)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    figures = (
        f"{made - start:.1f} | {planned - made:.1f} | {(planned - made) * 1000 / nodes:.2f} | {memory:,}"
    )
    return f"| {shape} | {nodes:,} | {figures} | {steps:,} | {len(model.plan_bytes):,} |"


def write_artifacts(shape: str, nodes: int, folder: Path) -> None:
    """The training artifacts of a chain of at most `nodes` forward nodes, with cross-entropy and AdamW."""
    from minbuild.authoring import Recipe, generate_artifacts

    path = folder / "chain.onnx"
    path.write_bytes(chain(shape, nodes).SerializeToString())
    generate_artifacts(path, folder, Recipe(loss="cross-entropy", optimizer="adamw"))
    path.unlink()


if __name__ == "__main__":
    main()
