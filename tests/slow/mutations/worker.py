"""Runs tests over and over in one copy of the tree, each time in a fork that has the libraries imported already.

    python worker.py COPY (cc|py)

Reads lines of JSON with what to run, prints lines of JSON with what came of it. With `cc`, minbuild is imported too:
only kernels change then."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType

LIBRARIES = (
    *(
        "numpy",
        "onnx",
        "onnx.reference",
        "pytest",
        "ml_dtypes",
        "jinja2",
        "rich.console",
        "typer",
        "flatbuffers",
    ),
    *("itanium_demangler", "_pytest.assertion.rewrite", "_pytest.doctest", "_pytest.capture", "jsonschema"),
)
PLANNED = ("dense", "dense_fixed", "residual", "transfer")
OURS = ("minbuild.pipeline", "minbuild.cli.main", "minbuild.training")


class Expired(Exception):
    pass


def expire(number: int, frame: FrameType | None) -> None:
    raise Expired


def processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(tests: list[str], log: str, limit: float) -> dict[str, object]:
    began, before = time.monotonic(), processor_time()
    child = os.fork()
    if child == 0:
        os.setsid()
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for number in (1, 2):
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        import pytest

        code = 99
        try:
            code = int(
                pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", *tests])
            )
        finally:
            sys.stdout.flush()
            os._exit(code)
    signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except Expired:
        status = None
    signal.setitimer(signal.ITIMER_REAL, 0)
    with suppress(ProcessLookupError):  # also what it started and did not wait for
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    return {
        "code": status,
        "seconds": round(time.monotonic() - began, 2),
        "cpu": round(processor_time() - before, 2),
    }


def prepare() -> None:
    """Plans the sets that most tests use: a changed kernel changes no plan."""
    sets = import_module("case_sets")
    known: dict[tuple[object, ...], tuple[tuple[object, ...], object]] = {}

    def remembered(function: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object) -> object:
            key = (function, *(repr(x) if isinstance(x, dict) else id(x) for x in given))
            if key not in known:
                known[key] = given, function(*given)
            return known[key][1]

        return call

    for name in ("lower", "optimize", "build_plan"):
        setattr(sets, name, remembered(getattr(sets, name)))
    for name in PLANNED:
        case, operators = sets.load(sets.GOLDEN / name), sets.registry()
        sets.build_plan(sets.optimize(sets.lower(case.artifacts, operators, {}), operators), operators)


def main(copy: str, kind: str) -> None:
    os.chdir(copy)
    sys.path[:0] = [copy, str(Path(copy) / "tests/support")]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in LIBRARIES + (OURS if kind == "cc" else ()):
        try:
            import_module(name)
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)
    if kind == "cc":
        prepare()
    for line in sys.stdin:
        task = json.loads(line)
        sys.dont_write_bytecode = task["mutated"]  # what is compiled of a mutant must not outlive it
        answers.write(json.dumps(run(task["tests"], task["log"], task["limit"])) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
