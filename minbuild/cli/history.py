"""`minbuild history`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from minbuild.analysis.size_history import read_history
from minbuild.cli.progress import Verbose, exit_with_code
from minbuild.errors import BadInput
from minbuild.report.history_svg import FIGURES, render


def history(
    path: Annotated[
        Path,
        typer.Argument(metavar="HISTORY", help="The file that `minbuild reduce --history` adds a line to."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="File for the picture. Default: standard output."),
    ] = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE",
            help=f"A panel of the picture: {', '.join(FIGURES)}. Repeatable. Default: file, ram.",
        ),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Draw the sizes of all builds in a history, by commit, as an SVG picture."""
    with exit_with_code(verbose):
        for name in figure or ():
            if name not in FIGURES:
                raise BadInput(f"--figure {name}: there is no such figure. Choose from {', '.join(FIGURES)}.")
        records = read_history(path)
        if not records:
            raise BadInput(f"{path}: there is no build in it. Build with --history {path} first.")
        picture = render(records, tuple(figure or ("file", "ram")))
        if out is None:
            sys.stdout.write(picture)
            return
        try:
            out.write_text(picture, "utf-8")
        except OSError as error:
            raise BadInput(
                f"--out {out}: cannot be written: {error.strerror}. Choose another place."
            ) from error
