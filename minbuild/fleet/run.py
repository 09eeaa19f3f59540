"""From jobs to a report: what is finished is kept, the rest is built, and every package is written when it is there."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from minbuild.analysis.budgets import Budgets, judge
from minbuild.analysis.size_history import record_of
from minbuild.codegen.atomic_write import check_destination, write_file, write_package
from minbuild.errors import BadInput, MinbuildError, OverBudget
from minbuild.fleet.job import Job, Outcome
from minbuild.fleet.ledger import Ledger, Record, locked, manifest_digest
from minbuild.fleet.report import (
    BUILT,
    FAILED,
    KEPT,
    OVER,
    BuildResult,
    FleetReport,
    render_json,
    render_markdown,
)
from minbuild.fleet.schedulers import Scheduler
from minbuild.ir import Package
from minbuild.ir.size_record import SizeRecord

REPORTS = ("fleet.json", "fleet.md")
_REPORT = "report/report.json"  # in a package
_SHOWN = 12  # lines of a failed build that are repeated


class FleetProgress(Protocol):
    """Progress callback."""

    def begun(self, kept: int, missing: int, workers: int) -> None:
        """`kept` builds are finished, `missing` are to be done, `workers` at a time."""

    def ended(self, result: BuildResult, done: int, missing: int) -> None:
        """A build ended, the `done`th of `missing`. `result` is its record."""


def run_fleet(
    jobs: Sequence[Job],
    out: Path,
    scheduler: Scheduler,
    progress: FleetProgress,
    *,
    budgets: Mapping[str, Budgets],
    force: bool = False,
    again: bool = False,
) -> FleetReport:
    """Build all jobs into folders of `out`, named as they are, and write the combined report beside them. A build
    that is finished, by its inputs, arguments and minbuild, is kept unless `again`; a failed one does not stop the
    others. `jobs` run on `scheduler`, `progress` is called as they begin and end; `budgets` are limits by the name of
    a build; with `force`, edited packages are replaced. Raises BadInput before any work where a package cannot be
    written."""
    _check_places(jobs, out, force)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        ledger = Ledger(out)
        keys = {job.name: job.key() for job in jobs}
        finished = {} if again else _finished(jobs, keys, ledger, out)
        missing = [job for job in jobs if job.name not in finished]
        progress.begun(len(finished), len(missing), scheduler.workers)
        start = time.monotonic()
        results = {
            name: _judged(_kept(record, out / name), budgets[name], None) for name, record in finished.items()
        }
        with closing(scheduler.run(missing)) as ends:
            for done, (job, outcome) in enumerate(ends, 1):
                result = _take(job, outcome, out / job.name, budgets[job.name], force)
                if outcome.exit_code == 0 and result.figures:
                    digest = manifest_digest(out / job.name)
                    ledger.add(Record(job.name, keys[job.name], digest, outcome.seconds, outcome.worker))
                results[job.name] = result
                progress.ended(result, done, len(missing))
        report = FleetReport(
            tuple(results[job.name] for job in jobs), time.monotonic() - start, scheduler.workers
        )
        for name, text in zip(REPORTS, (render_json(report), render_markdown(report)), strict=True):
            write_file(out / name, text.encode())
        return report


def _check_places(jobs: Sequence[Job], out: Path, force: bool) -> None:
    """Raises BadInput that lists every package that cannot be written."""
    wrong = []
    for job in jobs:
        for folder in dict.fromkeys(path.parent for path in job.inputs.values()):
            try:
                check_destination(out / job.name, folder, force)
            except BadInput as error:
                wrong.append(f"{job.name}: {error}")
                break
    if wrong:
        raise BadInput("\n".join(wrong))


def _finished(
    jobs: Sequence[Job], keys: Mapping[str, str], ledger: Ledger, out: Path
) -> Mapping[str, Record]:
    found = {job.name: ledger.finished(job.name, keys[job.name], out / job.name) for job in jobs}
    return {name: record for name, record in found.items() if record is not None}


def _kept(record: Record, package: Path) -> BuildResult:
    report = json.loads((package / _REPORT).read_bytes())
    return _result(record.name, KEPT, report, 0.0, record.worker)


def _result(name: str, state: str, report: Mapping[str, object], seconds: float, worker: str) -> BuildResult:
    summary = report["summary"]
    assert isinstance(summary, list)
    proven = tuple(entry["target"] for entry in summary if entry["proven"])
    return BuildResult(name, state, figures=record_of(report), proven=proven, seconds=seconds, worker=worker)


def _take(job: Job, outcome: Outcome, place: Path, budgets: Budgets, force: bool) -> BuildResult:
    """Write the package of a build, and hold it against its budgets."""
    if outcome.exit_code:
        return _failed(job.name, outcome.exit_code, outcome.messages, outcome)
    earlier = _earlier(place)
    try:
        write_package(place, Package(dict(outcome.package)), force)
    except MinbuildError as error:
        return _failed(job.name, error.exit_code, f"error: {error}", outcome)
    report = json.loads(outcome.package[_REPORT])
    return _judged(_result(job.name, BUILT, report, outcome.seconds, outcome.worker), budgets, earlier)


def _failed(name: str, code: int, text: str, outcome: Outcome) -> BuildResult:
    """The messages of a build from its first error on; the last ones where there is none."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith(("error:", "internal error:"))), 0)
    shown = lines[first:] if first else lines[-_SHOWN:]
    if not shown:
        shown = [f"ended with exit code {code} and said nothing. Was it killed, for want of memory?"]
    return BuildResult(
        name, FAILED, _exit_code(code), tuple(shown[:_SHOWN]), seconds=outcome.seconds, worker=outcome.worker
    )


def _exit_code(code: int) -> int:
    """The exit code of a process; one that was ended by a signal counts as an internal error."""
    return code if code > 0 else 1


def _earlier(place: Path) -> SizeRecord | None:
    """The figures of the package that is replaced, for budgets of growth."""
    try:
        return record_of(json.loads((place / _REPORT).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _judged(result: BuildResult, budgets: Budgets, earlier: SizeRecord | None) -> BuildResult:
    assert result.figures is not None
    try:
        verdicts = judge(budgets, result.figures, earlier)
    except BadInput as error:
        return _over(result, (f"error: {error}",), error.exit_code)
    texts = tuple(("over budget: " if v.over else "warning: ") + v.text for v in verdicts)
    over = any(verdict.over for verdict in verdicts)
    return _over(result, texts, OverBudget.exit_code if over else 0)


def _over(result: BuildResult, messages: tuple[str, ...], code: int) -> BuildResult:
    return replace(result, state=OVER if code else result.state, exit_code=code, messages=messages)
