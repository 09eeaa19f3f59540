"""Starts the tools, several at a time, and leaves none of them behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from minbuild.errors import ToolchainFailed

T = TypeVar("T")
R = TypeVar("R")

# They would let a developer's settings reach the compiled bytes.
_SCRUBBED = frozenset(
    ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH", "LIBRARY_PATH", "LD_RUN_PATH")
    + ("COMPILER_PATH", "GCC_EXEC_PREFIX", "SOURCE_DATE_EPOCH", "CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS")
    + ("DESTDIR", "MAKEFLAGS")
)
_SHOWN_LINES = 8
DISK_FULL = "The disk is full: free some space, or point MINBUILD_CACHE and TMPDIR to another disk."


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a finished process: exit code (negative for a signal), standard output, standard error."""

    code: int
    out: bytes
    err: str


class Processes:
    """The running children, `most` at a time. Leaving the `with` block by an exception (Ctrl-C as well) kills all of
    them; `politely` asks them to end, as children that have children and files of their own need it."""

    def __init__(self, most: int = 1, politely: bool = False) -> None:
        self._signal = signal.SIGTERM if politely or os.name != "posix" else signal.SIGKILL
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(most)
        self._keys: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        self._first_failure: ToolchainFailed | None = None

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self.stop()

    def stop(self) -> None:
        """Kill every child and let no new one start."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _end(process, self._signal)

    def run(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float | None = None
    ) -> Result:
        """Run to the end. `command` are the words, `cwd` its folder, `env` all of its environment. Raises
        FileNotFoundError without the program, subprocess.TimeoutExpired after `timeout` s."""
        with self._slots:
            process = self._start(command, cwd, env)
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                _end(process, self._signal)
                process.wait()
                raise
            finally:
                with self._lock:
                    self._running.discard(process)
        return Result(process.returncode, out, err.decode(errors="replace"))

    def _start(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise ToolchainFailed("The build was stopped.")
            process = subprocess.Popen(
                list(command),
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Own group: compilers start further processes, and all of them have to go.
                start_new_session=os.name == "posix",
            )
            self._running.add(process)
            return process

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """One thread at a time for what has this key: the others then find it made."""
        with self._lock:
            lock = self._keys[key]
        with lock:
            yield

    def map(self, work: Callable[[T], R], items: Iterable[T], jobs: int) -> list[R]:
        """`work` over `items` on `jobs` threads, results in order. The first failure stops everything that runs, also
        what other calls started, and it is the one that all of them raise: the others fail because they were
        stopped."""
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            futures = [pool.submit(work, item) for item in items]
            try:
                ended = wait(futures, return_when=FIRST_EXCEPTION).done
                for future in ended:
                    future.result()  # raises its failure
                return [future.result() for future in futures]
            except ToolchainFailed as failure:
                with self._lock:  # before the others fail because they are stopped
                    first = self._first_failure = self._first_failure or failure
                self._stop_all(futures)
                raise first from None
            except BaseException:
                self._stop_all(futures)
                raise

    def _stop_all(self, futures: Iterable[Future[R]]) -> None:
        for future in futures:
            future.cancel()
        self.stop()


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is not None:
        return
    try:
        if os.name == "posix":
            os.killpg(process.pid, number)
        else:
            process.kill()
    except (ProcessLookupError, PermissionError):
        pass


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Our environment without what changes compiled bytes or the language of messages."""
    kept = {name: value for name, value in os.environ.items() if name not in _SCRUBBED}
    return {**kept, "LC_ALL": "C", "NO_COLOR": "1", "ZERO_AR_DATE": "1", **extra}


def failure(where: str, command: Sequence[str], result: Result, cure: str) -> ToolchainFailed:
    """The error of a tool that said no: where, its first complaints, the command, the cure. `where` begins the
    message, `command` and its `result` follow, `cure` ends it."""
    text = result.err or result.out.decode(errors="replace")
    if "No space left" in text or "NoSpaceLeft" in text:
        cure = DISK_FULL
    how = (
        f"was killed by signal {-result.code}" if result.code < 0 else f"failed with exit code {result.code}"
    )
    if result.code == -9:
        cure = "The system probably ran out of memory: close other programs, or build with fewer jobs."
    return ToolchainFailed(
        f"{where}: {command[0]} {how}.\n{_complaints(text)}Command: {' '.join(command)}\n{cure}"
    )


def _complaints(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    # What a compiler or linker says tells more than what CMake says about it.
    marked = (i for word in ("error:", "Error") for i, line in enumerate(lines) if word in line)
    first = next(marked, 0)
    return "".join(f"  {line}\n" for line in lines[first : first + _SHOWN_LINES])
