"""`minbuild reduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minbuild import reduce as reducing
from minbuild.commands.common import Artifacts, Json, OpsFolders, Terminal, Verbose, failures, sizes_given
from minbuild.planned import DEFAULT_LARGEST
from minbuild.report import console as console_report
from minbuild.report import json as json_report


def reduce(
    artifacts: Artifacts,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the package; one of minbuild's own is replaced.")
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(help="Machine to build for, such as aarch64-linux-musl. Repeatable. Default: this one."),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(help="Fix a free dimension, such as batch=8: the trainer is smaller. Repeatable."),
    ] = None,
    max_: Annotated[
        list[str] | None,
        typer.Option(
            "--max",
            help="Largest size of a free dimension to make memory for by default, such as batch=64. "
            f"Default: {DEFAULT_LARGEST}. Repeatable.",
        ),
    ] = None,
    cxx: Annotated[
        str | None,
        typer.Option(help="A gcc or clang to use instead of the compiler that comes with minbuild."),
    ] = None,
    cmake_toolchain: Annotated[
        Path | None, typer.Option(help="A CMake toolchain file, such as that of the Android NDK.")
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Recorded trajectory (.npz) that the trainer must follow, to within its noise."),
    ] = None,
    check_loss: Annotated[
        bool,
        typer.Option(
            "--check-loss",
            help="Training steps whose loss is infinite or no number fail, and leave gradients as they are.",
        ),
    ] = False,
    ops_dir: OpsFolders = None,
    json_output: Json = False,
    verbose: Verbose = False,
) -> None:
    """Build, prove and measure a trainer that holds nothing but what ARTIFACTS need."""
    with failures(verbose), Terminal(verbose) as terminal:
        request = reducing.Request(
            artifacts,
            out,
            tuple(target or ()),
            sizes_given("--dim", dim),
            sizes_given("--max", max_),
            cxx,
            cmake_toolchain,
            reference,
            tuple(ops_dir or ()),
            check_loss,
        )
        report = reducing.reduce(request, terminal)
        terminal.done()
        if json_output:
            print(json_report.render(report), end="")
            return
        screen = Console()
        width = screen.width if screen.is_terminal else 100
        print(console_report.render(report, color=screen.is_terminal, width=width), end="")
        print(
            f"Package: {out} (start with {out / 'README.md'}; the report is {out / 'report' / 'report.html'})"
        )
