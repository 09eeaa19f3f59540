"""`minbuild why` and `minbuild explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minbuild.analysis.disassembly import disassemble
from minbuild.analysis.error_codes import explain as explained
from minbuild.analysis.provenance import why as chains
from minbuild.cli.progress import Verbose, exit_with_code, print_lines

Package = Annotated[Path, typer.Option("--package", help="Folder that minbuild reduce wrote.")]


def why(
    name: Annotated[
        str, typer.Argument(help="Operator, kernel file, symbol, or C function.", metavar="NAME")
    ],
    package: Package = Path("dist"),
    asm: Annotated[
        bool,
        typer.Option(
            "--asm", help="Also print the machine code of the function NAME (needs the package capstone)."
        ),
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Explain why NAME is in a package: the nodes that need it, the kernel, the symbol, the C library."""
    with exit_with_code(verbose):
        print_lines(*chains(name, package))
        if asm:
            print_lines(*disassemble(name, package))


def explain(
    code: Annotated[
        str,
        typer.Argument(
            help="Status that a trainer returned, as a number or a name; or its error code, in quotes, such as "
            "'E9 3 Conv'.",
            metavar="CODE",
        ),
    ],
    verbose: Verbose = False,
) -> None:
    """Explain the status CODE of a trainer, and its cure."""
    with exit_with_code(verbose):
        print_lines(*explained(code).splitlines())
