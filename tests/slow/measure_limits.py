"""Time and memory of `minbuild` at real size: reports/baseline/limits.md.

    python tests/slow/measure_limits.py [--out PAGE] [--add] [--artifacts-only] NAME=ARTIFACTS...

Each set is reduced with `--no-analysis` and an empty cache. `NAME=MODEL.onnx` measures `minbuild artifacts` with AdamW
first, and then the reduction of what it wrote, unless `--artifacts-only`; `NAME=MODEL.onnx:lora=WEIGHTS` adds low-rank
matrices to these weights.
Times are on the clock and of processors, memory is the largest sum of the resident sets of the command and all that it
started, looked at every 20 ms. `bench_large.py` makes the artifacts of BERT-base and ResNet-50, `limit_models.py` GPT-2
small and models of any size. `--add` keeps the rows of other models that the page has.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
PAGE = ROOT / "reports" / "baseline" / "limits.md"
GOALS = {  # seconds, GB
    ("BERT-base", "reduce"): (90, 3.0),
    ("ResNet-50", "reduce"): (40, None),
    ("GPT-2 small", "reduce"): (150, 4.0),
    ("perceptron, 755 M", "artifacts"): (30, 6.0),  # twice the parameters
}
HEAD = "| model | command | seconds | of processors | memory, GB | goal | verdict |\n|---|---|--:|--:|--:|---|---|"
EVERY = 0.02


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds on the clock and of processors, the peak of memory in bytes, and the command's output."""

    clock: float
    processors: float
    memory: int
    text: str

    def row(self, name: str, command: str, verdict: str) -> str:
        seconds, size = GOALS.get((name, command), (None, None))
        limits = (f"{seconds} s" if seconds else "", f"{size:g} GB" if size else "")
        goal = ", ".join(filter(None, limits))
        return (
            f"| {name} | {command} | {self.clock:.0f} | {self.processors:.0f} | {self.memory / 1e9:.2f} | {goal} | "
            f"{verdict} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--artifacts-only", action="store_true")
    parser.add_argument("sets", nargs="+", metavar="NAME=ARTIFACTS")
    options = parser.parse_args()
    names = {given.partition("=")[0] for given in options.sets}
    rows = (
        [row for row in _rows(options.out) if row.split(" | ")[0].strip("| ") not in names]
        if options.add
        else []
    )
    for given in options.sets:
        name, _, path = given.partition("=")
        path, _, lora = path.partition(":lora=")
        for row in islice(rows_of(name, Path(path).resolve(), lora), 1 if options.artifacts_only else None):
            rows.append(row)
            sys.stdout.write(row + "\n")
            sys.stdout.flush()
    when = "at the end of the last rows" if options.add else "at the end"
    about = (
        f"`minbuild` at real size, on {len(os.sched_getaffinity(0))} processors of {platform.machine()}, "
        f"{os.getloadavg()[0]:.1f} processes running {when}: on a busy machine go by the seconds of processors. "
        "Memory is the largest sum of the resident sets of all processes at once. Reductions have an empty "
        "cache and `--no-analysis`."
    )
    options.out.write_text("\n".join((about, "", HEAD, *rows)) + "\n", encoding="utf-8")


def _rows(page: Path) -> list[str]:
    """The rows of a page that was written before."""
    return page.read_text("utf-8").rstrip("\n").partition(f"{HEAD}\n")[2].splitlines()


def rows_of(name: str, path: Path, lora: str) -> Iterator[str]:
    """The rows of artifacts in folder `path`, or of an ONNX file, of which they are made first, with low-rank matrices
    beside the weights `lora`, if any."""
    with tempfile.TemporaryDirectory(prefix="minbuild-limits-") as folder:
        artifacts = path
        if path.is_file():
            artifacts = Path(folder) / "artifacts"
            extra = ("--lora", lora) if lora else ()
            command = ("artifacts", str(path), "--out", str(artifacts), "--loss", "cross-entropy")
            made = measure((*command, "--optimizer", "adamw", *extra), Path(folder))
            yield made.row(name, "artifacts", "made")
        found = measure(
            ("reduce", str(artifacts), "--out", str(Path(folder) / "dist"), "--no-analysis"), Path(folder)
        )
        verdict = next((line.split(": ", 1)[1] for line in found.text.splitlines() if "PROVEN" in line), "?")
        yield found.row(name, "reduce", verdict.strip())


def measure(arguments: Sequence[str], place: Path) -> Measured:
    """`minbuild` with `arguments` and a cache in `place`. Ends the program where it fails."""
    environment = {**os.environ, "MINBUILD_CACHE": str(place / "cache"), "PYTHONPATH": str(ROOT)}
    output, peak, start = place / "output", 0, time.perf_counter()
    before = _processors()
    with output.open("wb") as stream:
        command = (sys.executable, "-m", "minbuild", *arguments)
        with subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT) as process:
            while process.poll() is None:
                peak = max(peak, sum(_resident(process.pid)))
                time.sleep(EVERY)
    clock, text = time.perf_counter() - start, output.read_text("utf-8")
    if process.returncode:
        raise SystemExit(text)
    return Measured(clock, _processors() - before, peak, text)


def _processors() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _resident(root: int) -> Iterator[int]:
    """Bytes of the resident sets of a process and all below it."""
    page = os.sysconf("SC_PAGE_SIZE")
    waiting = [root]
    while waiting:
        place = Path(f"/proc/{waiting.pop()}")
        try:
            yield int((place / "statm").read_text().split()[1]) * page
            for task in (place / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:  # it ended
            continue


if __name__ == "__main__":
    main()
