"""Trainers in processes of their own (large_worker.py), by turns, for bench_large.py."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
WORKER = str(HERE.with_name("large_worker.py"))
TURN, FEWEST = 1.0, 7  # seconds of a turn, and turns of each: single ones vary by 5 %
AGREE = 2e-3  # relative difference of first losses


class Failed(Exception):
    """A row could not be measured."""


class Participant:
    """A process that trains when asked."""

    def __init__(self, who: str, python: Path, folder: Path, *given: object) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(given[-1]), "PYTHONPATH": str(ROOT)}
        command = [str(python), WORKER, who, str(folder), *map(str, given)]
        pipe = subprocess.PIPE
        log = (folder / f"{who}{given[-1]}.log").open("w")
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment
        )
        self.log = Path(log.name)
        self.loss = float(self._answer())

    def _answer(self):
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.end()
            raise Failed(f"{' '.join(map(str, self.process.args))}\n{self.log.read_text()[-3000:]}")
        return json.loads(line)

    def begin(self, count: int) -> None:
        """Has it begin with `count` steps."""
        assert self.process.stdin is not None
        print(count, file=self.process.stdin, flush=True)

    def ended(self, count: int) -> tuple[float, float]:
        """Seconds a step of those, once they are done, by the wall clock and by processors."""
        wall, used = self._answer()
        return wall / count, used / count

    def steps(self, count: int) -> tuple[float, float]:
        """Seconds a step, by the wall clock and by processors."""
        self.begin(count)
        return self.ended(count)

    def memory(self) -> int:
        """Bytes; ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        found = self._answer() * 1024
        self.process.wait()
        return int(found)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def used(self) -> float:
        """Seconds of processors so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Pair:
    """Two processes that train at the same time."""

    def __init__(self, *both: Participant) -> None:
        self.both = both

    def steps(self, count: int) -> tuple[float, float]:
        """Seconds a step of the slower one, by the wall clock and by processors."""
        for each in self.both:
            each.begin(count)
        return max(each.ended(count) for each in self.both)

    def used(self) -> float:
        """Seconds of processors so far, besides those of the first, which takes turns of its own."""
        return self.both[1].used()

    def end(self) -> None:
        for each in self.both:
            each.end()


def _busy() -> float:
    """Seconds of processors that all processes have used since the machine started."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def check_losses(losses: dict[str, float]) -> None:
    """Raises Failed unless all first losses agree."""
    if not max(losses.values()) - min(losses.values()) <= AGREE * max(losses.values()):
        raise Failed(f"the first losses differ: {losses}")


def raced(participants: Mapping[str, Participant | Pair], threads: int, seconds: float) -> dict[str, float]:
    """The best milliseconds of each in turns, and how many cores other processes used."""
    counts, best = {}, dict.fromkeys(participants, math.inf)
    for who, p in participants.items():
        counts[who] = max(1, round(TURN / p.steps(1)[0]))
    since, turns = time.perf_counter(), 0
    busy, own = _busy(), sum(p.used() for p in participants.values())
    while time.perf_counter() - since < seconds * len(participants) or turns < FEWEST:
        for who, p in participants.items():
            best[who] = min(best[who], p.steps(counts[who])[1 if threads == 1 else 0])
        turns += 1
    others = _busy() - busy - sum(p.used() for p in participants.values()) + own
    row = {who: 1000 * each for who, each in best.items()}
    return row | {"others": max(0.0, others / (time.perf_counter() - since))}
