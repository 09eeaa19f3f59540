"""Jobs on the workers of a Dask cluster, which get the bytes of what they need and send packages back.

A job whose worker dies is done again by another one. An outcome is fetched as soon as it is there, so a dying worker
takes nothing with it but what it was doing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any

from minbuild.errors import BadInput
from minbuild.fleet.job import Job, Outcome, fingerprint, run_there
from minbuild.fleet.schedulers import Ends

_WAIT = "10s"  # for the scheduler to answer
_AHEAD = 2  # jobs sent for each one that can run: workers never wait, and few inputs are in memory
_TRIES = 3  # of a job whose worker dies


class DaskScheduler:
    """The cluster whose scheduler listens at `address`, such as tcp://host:8786."""

    def __init__(self, address: str) -> None:
        """Connect. Raises BadInput when distributed is missing, no scheduler is there, it has no workers, or one has
        another minbuild than this machine, whose packages would have other bytes."""
        try:
            from distributed import Client
        except ImportError:
            raise BadInput(
                "--scheduler: Dask is not installed. Run pip install 'distributed>=2024.1' here and on the workers."
            ) from None
        self._address = address
        try:
            self._client = Client(address, timeout=_WAIT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise BadInput(
                f"--scheduler {address}: no scheduler of Dask answers there: {error}. Start one with `dask scheduler`, "
                "and workers with `dask worker`."
            ) from error
        threads = self._client.nthreads()
        if not threads:
            raise BadInput(
                f"--scheduler {address}: it has no workers. Start some with `dask worker {address}`."
            )
        self._workers = sum(threads.values())
        self._check_versions()

    @property
    def workers(self) -> int:
        return self._workers

    def run(self, jobs: Sequence[Job]) -> Ends:
        from distributed import as_completed

        waiting = list(reversed(jobs))
        tries = Counter[str]()
        sent: dict[Any, Job] = {}
        finished = as_completed(loop=self._client.loop)
        try:
            while waiting or sent:
                while waiting and len(sent) < _AHEAD * self._workers:
                    job = waiting.pop()
                    try:
                        contents = job.contents()  # with the job, not on a worker: it outlives that
                    except BadInput as error:
                        yield job, Outcome(error.exit_code, f"error: {error}", self._address)
                        continue
                    future = self._client.submit(_run, contents, job.arguments, pure=False)
                    sent[future] = job
                    finished.add(future)
                if not sent:
                    break
                future = next(finished)
                job = sent.pop(future)
                tries[job.name] += 1
                outcome = self._outcome(future, last=tries[job.name] == _TRIES)
                if outcome is None:
                    waiting.append(job)
                else:
                    yield job, outcome
        finally:
            self._client.cancel(list(sent))
            self._client.close()

    def _outcome(self, future: Any, last: bool) -> Outcome | None:
        """The result of a job; None where the worker died with it, unless this was the `last` try."""
        from distributed import KilledWorker

        try:
            found: Outcome = future.result()
        except (CancelledError, KilledWorker, OSError) as error:
            if not last and not isinstance(error, KilledWorker):
                return None
            what = f"the workers that took this job died: {type(error).__name__} {error}"
            text = f"error: {what}. Look for want of memory in their logs."
            return Outcome(1, text, self._address)
        finally:
            future.release()
        if found.minbuild != fingerprint():  # of a worker that came later
            text = f"error: {found.worker} has another minbuild than this machine. Install the same version there."
            return Outcome(2, text, found.worker, found.seconds)
        return found

    def _check_versions(self) -> None:
        try:
            found = self._client.run(_fingerprint, on_error="return")
        except OSError as error:
            raise BadInput(f"--scheduler {self._address}: the connection was lost: {error}.") from error
        wrong = [f"{worker}: {_mismatch(each)}" for worker, each in found.items() if each != fingerprint()]
        if wrong:
            raise BadInput(
                f"--scheduler {self._address}: not every worker has the minbuild of this machine.\n"
                + "\n".join(wrong)
            )


def _mismatch(found: object) -> str:
    if isinstance(found, BaseException):
        return f"cannot load it ({type(found).__name__}: {found}). Install it there."
    return f"has another version ({found}; here {fingerprint()}). Install the same there."


def _fingerprint() -> str:
    from minbuild.fleet.job import fingerprint as own

    return own()


def _run(contents: dict[str, bytes], arguments: tuple[str, ...]) -> Outcome:
    from distributed import get_worker

    return run_there(contents, arguments, str(get_worker().address))
