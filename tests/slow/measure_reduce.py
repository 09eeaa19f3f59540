"""How long `minbuild reduce` takes with nothing in its cache, after another model, and again, all builds of the report
included: reports/baseline/reduce_time.md.

    python tests/slow/measure_reduce.py [--jobs N] [--full-library FOLDER] [--no-empty] [--dry] [NAME...]

The goal is for mobilenetv2 on two processors, so no more than two are used unless told otherwise. What an empty cache
lacks besides the model's own builds is the full library, which all models share: FOLDER is a cache that has it, filled
first where it is missing. Cells of the page that are not measured stay as they are, as those of the empty cache with
--no-empty; --dry leaves the page alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(ROOT)]
CASES = ("mlp", "lenet", "lstm_cls", "bert_tiny", "resnet8", "mobilenetv2")
COLD, WARM = 300.0, 10.0  # seconds: the goals
PAGE = ROOT / "reports" / "baseline" / "reduce_time.md"
OTHER = TESTS / "golden" / "mse"  # the model that fills a cache
PROCESSORS = "processor time, s"
COLUMNS = (
    "empty cache, s", PROCESSORS, "after another model, s", PROCESSORS, "again, s", PROCESSORS, "load at the end",
)  # fmt: skip
HEAD = f"| case | {' | '.join(COLUMNS)} |\n|---|{'--:|' * len(COLUMNS)}"
NONE = ["-"] * len(COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2, help="processors to use")
    parser.add_argument("--full-library", type=Path, help="a cache that has the full library")
    parser.add_argument("--no-empty", action="store_true", help="leave the empty cache out")
    parser.add_argument("--dry", action="store_true", help="leave the page alone")
    parser.add_argument("names", nargs="*", help=f"default: {', '.join(CASES)}")
    options = parser.parse_args()
    from case_sets import folders

    places = {folder.name: folder for folder in folders()}
    names = tuple(options.names or CASES)
    if missing := [name for name in names if name not in places or name not in CASES]:
        raise SystemExit(f"{', '.join(missing)}: not among {', '.join(CASES)}, or not here")
    used = _restrict(options.jobs)
    rows = _before()
    sys.stdout.write(f"{HEAD}\n")
    with tempfile.TemporaryDirectory(prefix="minbuild-time-") as scratch:
        cache = options.full_library or Path(scratch) / "cache"
        if not cache.is_dir():
            _reduce(OTHER, Path(scratch) / "dist", cache, "--no-analysis")
        for name in names:
            empty, rest = rows.get(name, NONE)[:2], _measure(places[name], cache)
            if not options.no_empty:
                empty = _cells(_reduce(places[name], Path(scratch) / name, Path(scratch) / f"{name} cache"))
            rows[name] = [*empty, *rest, f"{os.getloadavg()[0]:.1f}"]
            sys.stdout.write(f"{_line(name, rows[name])}\n")
            sys.stdout.flush()
            if not options.dry:
                _write(rows, used)


def _write(rows: Mapping[str, list[str]], used: int) -> None:
    about = (
        f"`minbuild reduce` with the whole report, on {used} processors of {platform.machine()}: with an empty cache, "
        "with one that has the full library of an earlier model, and again. The load counts processes that ran, these "
        "builds among them: with more than processors, the clock says little. Goals for mobilenetv2: "
        f"{COLD:.0f} s with an empty cache, {WARM:.0f} s again."
    )
    lines = [_line(name, rows[name]) for name in CASES if name in rows]
    PAGE.write_text("\n".join((about, "", HEAD, *lines)) + "\n", "utf-8")


def _line(name: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join((name, *cells))} |"


def _before() -> dict[str, list[str]]:
    """The cells of the page, by case."""
    lines = PAGE.read_text("utf-8").splitlines() if PAGE.is_file() else []
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows[1:] if len(row) == 1 + len(COLUMNS)}


def _restrict(jobs: int) -> int:
    """Leave this process and its children so many processors; how many that are."""
    if not hasattr(os, "sched_setaffinity"):
        return os.cpu_count() or 1
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:jobs])
    return len(os.sched_getaffinity(0))


def _measure(folder: Path, cache: Path) -> list[str]:
    """The cells of a case after another model, which left `cache`, and again."""
    with tempfile.TemporaryDirectory(prefix="minbuild-time-") as scratch:
        own = Path(scratch) / "cache"
        shutil.copytree(cache, own)
        times = [_reduce(folder, Path(scratch) / "dist", own) for _ in ("after another", "again")]
    return [cell for each in times for cell in _cells(each)]


def _cells(times: tuple[float, float]) -> list[str]:
    return [f"{seconds:.1f}" for seconds in times]


def _reduce(artifacts: Path, out: Path, cache: Path, *options: str) -> tuple[float, float]:
    """Seconds on the clock and of processors, of the command and all it started."""
    environment = {**os.environ, "MINBUILD_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    call = "from minbuild.cli.main import main; main()"
    command = (sys.executable, "-c", call, "reduce", str(artifacts), "--out", str(out), *options)
    start, before = time.perf_counter(), os.times()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = os.times()
    worked = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, worked


if __name__ == "__main__":
    main()
