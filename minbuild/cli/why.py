"""`minbuild why` and `minbuild explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minbuild.analysis.error_codes import explain as explained
from minbuild.analysis.why import why as chains
from minbuild.cli.progress import Verbose, failures

Package = Annotated[Path, typer.Option("--package", help="Folder that minbuild reduce wrote.")]


def why(
    name: Annotated[
        str, typer.Argument(help="Operator, kernel file, symbol, or C function.", metavar="NAME")
    ],
    package: Package = Path("dist"),
    verbose: Verbose = False,
) -> None:
    """Say why NAME is in a package: the nodes that want it, the kernel, the symbol, the C library."""
    with failures(verbose):
        for line in chains(name, package):
            print(line)


def explain(
    code: Annotated[
        str,
        typer.Argument(
            help="Status that a trainer answered, as a number or a name; or its error, in quotes, where that is a "
            "code such as E9 3 Conv.",
            metavar="CODE",
        ),
    ],
    verbose: Verbose = False,
) -> None:
    """Say what CODE of a trainer means, and what to do about it."""
    with failures(verbose):
        print(explained(code))
