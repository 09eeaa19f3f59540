"""`minbuild fleet`."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minbuild.cli.fleet_file import read_fleet
from minbuild.cli.progress import Json, Terminal, Verbose, columns_of, exit_with_code
from minbuild.errors import BadInput
from minbuild.escape import printable, printable_lines
from minbuild.fleet import BuildResult, Job, LocalScheduler, Scheduler, run_fleet
from minbuild.fleet.report import render_json, render_text

EXAMPLES = """[bold]Example[/bold] of a file, fleet.toml

    profile = "smallest"
    \\[budgets]
    flash = "20 KiB"
    [\\[build]]
    artifacts = "models/keyword"
    target = ["cortex-m4f", "wasm32"]
    [\\[build]]
    artifacts = "models/vision-*"

    minbuild fleet fleet.toml --out dist/"""


def fleet(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Settings for all builds, as in minbuild.toml, and a table [\\[build]] for each one: artifacts (a "
            "folder, a file, a list, or a pattern for a build per match), name, and settings of its own.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for the packages, one in each folder, and the report.",
        ),
    ],
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Builds at the same time. Default: the cores of this machine."),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Build on the workers of a Dask cluster instead, such as tcp://host:8786."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only these builds: a name, or a pattern such as 'vision-*'. Repeatable."
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Build also what is finished.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace packages although they hold foreign or edited files.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command of every build, and build nothing.")
    ] = False,
    json_output: Json = False,
    verbose: Verbose = False,
) -> None:
    """Build, prove and measure many models for many targets; what is finished is kept when it runs again."""
    with exit_with_code(verbose):
        found = read_fleet(file)
        jobs = _chosen(found.jobs, only or [])
        if scheduler is not None and workers is not None:
            raise BadInput(
                "--workers is for this machine; a cluster has the workers that it has. Leave one out."
            )
        if dry_run:
            for job in jobs:
                print(
                    printable(f"{job.name}: minbuild reduce {' '.join(job.arguments)} --out {out / job.name}")
                )
            return
        with Terminal(verbose) as terminal:
            terminal.stage(f"Reading {file}")
            report = run_fleet(
                jobs,
                out,
                _scheduler(scheduler, workers),
                _Progress(terminal),
                budgets=found.budgets,
                force=force,
                again=again,
            )
        if json_output:
            print(render_json(report), end="")
        else:
            screen = Console()
            print(printable_lines(render_text(report, columns_of(screen))))
            print(printable(f"Report: {out / 'fleet.md'}"))
        if report.exit_code:
            raise typer.Exit(report.exit_code)


def _chosen(jobs: tuple[Job, ...], patterns: list[str]) -> tuple[Job, ...]:
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(job.name, pattern) for job in jobs):
            names = ", ".join(job.name for job in jobs)
            raise BadInput(f"--only {pattern}: there is no such build. Choose from {names}.")
    return tuple(
        job for job in jobs if not patterns or any(fnmatch.fnmatchcase(job.name, p) for p in patterns)
    )


def _scheduler(address: str | None, workers: int | None) -> Scheduler:
    if address is None:
        return LocalScheduler(workers)
    from minbuild.fleet.dask_scheduler import DaskScheduler

    return DaskScheduler(address)


class _Progress:
    """A line for each build that ends."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def begun(self, kept: int, missing: int, workers: int) -> None:
        self._terminal.stage(f"Building {missing} with {workers} at a time; {kept} are finished and kept")

    def ended(self, result: BuildResult, done: int, missing: int) -> None:
        flash = (
            "".join(f", {t.target} {t.loaded:,} B" for t in result.figures.targets) if result.figures else ""
        )
        self._terminal.note(
            f"{done}/{missing} {result.name}: {result.state} in {result.seconds:.1f} s{flash}"
        )
