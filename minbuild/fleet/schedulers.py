"""Doing the jobs of a fleet in processes on this machine; `dask_scheduler` does them on the workers of a cluster."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Protocol

from minbuild.errors import MinbuildError
from minbuild.fleet.job import Job, Outcome, run_here
from minbuild.toolchain.process import Processes

Ends = Generator[tuple[Job, Outcome], None, None]  # jobs with their outcomes, as they end

_HERE = "this machine"


class Scheduler(Protocol):
    """Something that does jobs."""

    @property
    def workers(self) -> int:
        """Number of jobs that it does at the same time."""

    def run(self, jobs: Sequence[Job]) -> Ends:
        """Do all jobs. When the generator is closed, what runs is stopped."""


class LocalScheduler:
    """Processes on this machine, `workers` at a time; by default one for each core that this process may use."""

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or available_cores()

    @property
    def workers(self) -> int:
        return self._workers

    def run(self, jobs: Sequence[Job]) -> Ends:
        processes = Processes(self._workers, politely=True)
        pool = ThreadPoolExecutor(self._workers)
        try:
            futures = {pool.submit(run_here, job, _HERE, processes): job for job in jobs}
            for done in as_completed(futures):
                yield futures[done], _outcome_of(done)
        finally:
            processes.stop()
            pool.shutdown(wait=True, cancel_futures=True)


def _outcome_of(done: Future[Outcome]) -> Outcome:
    """The outcome of a job, also where it could not be begun for lack of a file or of space."""
    try:
        return done.result()
    except MinbuildError as error:
        return Outcome(error.exit_code, f"error: {error}", _HERE)
    except OSError as error:
        text = f"error: the job cannot be run: {error}. Free some space, or set TMPDIR to another disk."
        return Outcome(2, text, _HERE)


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
