"""How long `minbuild reduce` takes with nothing in its cache and again, all builds of the report included:
reports/baseline/reduce_time.md.

    python tests/slow/measure_reduce.py [--jobs N] [NAME...]

The goal is for mobilenetv2 on two processors, so no more than two are used unless told otherwise.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(ROOT)]
CASES = ("mobilenetv2",)
COLD, WARM = 300.0, 10.0  # seconds: the goals
HEAD = "| case | empty cache, s | of it processor time, s | again, s | of it processor time, s |\n|---|--:|--:|--:|--:|"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2, help="processors to use")
    parser.add_argument("names", nargs="*", help=f"default: {', '.join(CASES)}")
    options = parser.parse_args()
    from case_sets import folders

    names = tuple(options.names or CASES)
    used = _restrict(options.jobs)
    rows = [_measure(folder) for folder in folders() if folder.name in names]
    if len(rows) < len(names):
        raise SystemExit(f"not all of {', '.join(names)} are here")
    sys.stdout.write("\n".join((HEAD, *rows)) + "\n")
    if not options.names:
        about = (
            f"`minbuild reduce` with the whole report, on {used} processors of {platform.machine()}, "
            f"{os.getloadavg()[0]:.1f} processes running at the end. "
            f"Goals: {COLD:.0f} s with an empty cache, {WARM:.0f} s again."
        )
        path = ROOT / "reports" / "baseline" / "reduce_time.md"
        path.write_text("\n".join((about, "", HEAD, *rows)) + "\n", "utf-8")


def _restrict(jobs: int) -> int:
    """Leave this process and its children so many processors; how many that are."""
    if not hasattr(os, "sched_setaffinity"):
        return os.cpu_count() or 1
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:jobs])
    return len(os.sched_getaffinity(0))


def _measure(folder: Path) -> str:
    """The row of a case."""
    with tempfile.TemporaryDirectory(prefix="minbuild-time-") as name:
        times = [_reduce(folder, Path(name)) for _ in ("empty", "again")]
    cells = (f"{seconds:.1f}" for pair in times for seconds in pair)
    return "| " + " | ".join((folder.name, *cells)) + " |"


def _reduce(artifacts: Path, place: Path) -> tuple[float, float]:
    """Seconds on the clock and of processors, of the command and all it started."""
    environment = {**os.environ, "MINBUILD_CACHE": str(place / "cache"), "PYTHONPATH": str(ROOT)}
    call = "from minbuild.cli.main import main; main()"
    command = (sys.executable, "-c", call, "reduce", str(artifacts), "--out", str(place / "dist"))
    start, before = time.perf_counter(), os.times()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    worked = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, worked


if __name__ == "__main__":
    main()
