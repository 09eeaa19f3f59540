"""The combined report of a fleet: every build and target in one table, with budgets, as text, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from minbuild.escape import for_json
from minbuild.ir.size_record import SizeRecord, TargetFigures
from minbuild.report.console import as_text
from minbuild.report.markdown import as_markdown
from minbuild.report.table import Line, Table
from minbuild.report.verdict import NOT_PROVEN, PROVEN

SCHEMA = 1
BUILT, KEPT, FAILED, OVER = "built", "kept", "failed", "over budget"
_COLUMNS = ("build ", "target ", "proof ", "flash", "file", "RAM", "stack", "seconds")


@dataclass(frozen=True, slots=True)
class BuildResult:
    """One build of a fleet: how it ended (one of the words above), the exit code of `minbuild reduce` (5 also where
    the fleet's budgets are exceeded), what is to be said of it, the figures of its report, the names of proven targets,
    seconds and worker."""

    name: str
    state: str
    exit_code: int = 0
    messages: tuple[str, ...] = ()
    figures: SizeRecord | None = None
    proven: tuple[str, ...] = ()
    seconds: float = 0.0
    worker: str = ""


@dataclass(frozen=True, slots=True)
class FleetReport:
    """All builds of a fleet in the order of its file, and what the run took: seconds on the clock, and workers."""

    builds: tuple[BuildResult, ...]
    elapsed: float
    workers: int

    def count(self, state: str) -> int:
        return sum(build.state == state for build in self.builds)

    @property
    def work(self) -> float:
        """Seconds that the builds of this run took, one after the other."""
        return sum(b.seconds for b in self.builds if b.state in (BUILT, OVER, FAILED))

    @property
    def exit_code(self) -> int:
        """That of the first build that did not end well, in the order of the file; 0 where all did."""
        return next((build.exit_code for build in self.builds if build.exit_code), 0)

    @property
    def summary(self) -> str:
        """One sentence: how many builds ended how, and what the workers were good for."""
        states = [f"{self.count(s)} {s}" for s in (BUILT, KEPT, OVER, FAILED) if self.count(s)]
        text = ", ".join(states) or "no builds"
        if self.work and self.elapsed:
            text += (
                f"; {self.work:.0f} s of work in {self.elapsed:.0f} s with {self.workers} "
                f"worker{'s' * (self.workers != 1)} ({self.work / self.elapsed:.2f} at a time)"
            )
        return f"{text}."


def table_of(report: FleetReport) -> Table:
    """One line per build and target; builds without a package have one line that says why."""
    lines = [line for build in report.builds for line in _lines(build)]
    return Table("fleet", "Fleet", report.summary, _COLUMNS, tuple(lines))


def _lines(build: BuildResult) -> Sequence[Line]:
    if build.figures is None:
        return [Line((build.name, build.state, "", "", "", "", "", _seconds(build)))]
    return [_line(build, target) for target in build.figures.targets]


def _line(build: BuildResult, target: TargetFigures) -> Line:
    proof = PROVEN if target.target in build.proven else NOT_PROVEN
    if build.state == OVER:
        proof = f"{proof}, {OVER}"
    stack = "–" if target.stack is None else target.stack
    return Line(
        (build.name, target.target, proof, target.loaded, target.file, target.ram, stack, _seconds(build))
    )


def _seconds(build: BuildResult) -> str:
    return KEPT if build.state == KEPT else f"{build.seconds:.1f}" if build.seconds else "–"


def render_text(report: FleetReport, width: int) -> str:
    """The table for a terminal of `width` columns, and what is to be said of single builds."""
    texts = [f"{build.name}: {message}" for build in report.builds for message in build.messages]
    return "\n".join((as_text(table_of(report), width).rstrip("\n"), *texts, report.summary))


def render_markdown(report: FleetReport) -> str:
    """The report as a page."""
    texts = [f"- {build.name}: {message}" for build in report.builds for message in build.messages]
    return (
        "\n".join(("# Fleet", "", as_markdown(table_of(report), titled=False).strip("\n"), "", *texts)) + "\n"
    )


def render_json(report: FleetReport) -> str:
    """The report as `schemas/fleet.schema.json` describes it."""
    builds = []
    for build in report.builds:
        figures = build.figures.targets if build.figures else ()
        targets = [
            {
                "target": t.target,
                "proven": t.target in build.proven,
                **{name: getattr(t, name) for name in ("loaded", "file", "download", "ram", "stack")},
            }
            for t in figures
        ]
        plain = {k: v for k, v in asdict(build).items() if k not in ("figures", "proven")}
        builds.append({**plain, "seconds": round(build.seconds, 3), "targets": targets})
    document = {
        "schema": SCHEMA,
        "summary": report.summary,
        "exit_code": report.exit_code,
        "elapsed": round(report.elapsed, 3),
        "work": round(report.work, 3),
        "workers": report.workers,
        "builds": builds,
    }
    return for_json(json.dumps(document, indent=1, ensure_ascii=False)) + "\n"
