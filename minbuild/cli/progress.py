"""Shared by the commands: options, progress, and failures as text with an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from minbuild.errors import BadInput, MinbuildError
from minbuild.escape import printable, printable_lines
from minbuild.planning.compiled_model import DEFAULT_LARGEST

SIZES = "NAME=SIZE"  # how options show that they take sizes by name
Artifacts = Annotated[
    Path,
    typer.Argument(
        help="Folder that generate_artifacts wrote, or an ONNX file with training information.",
        metavar="ARTIFACTS",
        show_default=False,
    ),
]
_SETS = "Folders with training artifacts, or ONNX files with training information, one per model"
ArtifactSets = Annotated[
    list[Path], typer.Argument(help=f"{_SETS}.", metavar="ARTIFACTS...", show_default=False)
]
SetsOrModels = Annotated[
    list[Path],
    typer.Argument(
        help=f"{_SETS}; with --loss, ONNX files or torch.export programs (.pt2) of forward models.",
        metavar="ARTIFACTS...",
        show_default=False,
    ),
]
Largest = Annotated[
    list[str] | None,
    typer.Option(
        "--max-dim",
        metavar=SIZES,
        help="Largest size of a free dimension that the default memory is planned for, such as batch=64. "
        f"Default: {DEFAULT_LARGEST}. Repeatable.",
    ),
]
OpsFolders = Annotated[
    list[Path] | None,
    typer.Option(
        "--ops-dir",
        metavar="FOLDER",
        help="Folder with custom operators: <stem>.py beside <stem>.cc. Repeatable.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print passes, builds, and tracebacks.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_COLUMNS = 100  # of reports in files and pipes


def columns_of(screen: Console) -> int:
    """The width of a report on `screen`: the terminal's, or COLUMNS of the environment where there is no terminal."""
    return screen.width if screen.is_terminal or "COLUMNS" in os.environ else _COLUMNS


def parse_sizes(option: str, texts: list[str] | None) -> dict[str, int]:
    """`batch=8` -> {"batch": 8}. Raises BadInput."""
    sizes: dict[str, int] = {}
    for text in texts or ():
        name, equals, digits = text.rpartition("=")
        if not equals or not name or not digits.isascii() or not digits.isdigit():
            raise BadInput(
                f"{option} {text}: not a size. Write the dimension's name and a number: {option} batch=8."
            )
        if not 0 < int(digits) < 2**31:
            raise BadInput(f"{option} {text}: {digits} is no possible size. Choose one from 1 to 2147483647.")
        if sizes.setdefault(name, int(digits)) != int(digits):
            raise BadInput(f"{option}: {name} is given two sizes, {sizes[name]} and {digits}. Leave one.")
    return sizes


class Terminal:
    """Progress on standard error: a spinner where there is a terminal, else a line per stage."""

    def __init__(self, verbose: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._verbose = verbose
        self._status: Status | None = None
        self._stage = ""

    def __enter__(self) -> Terminal:
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done()

    def done(self) -> None:
        if self._status is not None:
            self._status.stop()

    def stage(self, text: str) -> None:
        self._stage = text
        if self._status is None or self._verbose:
            self._line(text)
        self._show(text)

    def detail(self, text: str) -> None:
        if self._verbose:
            self._line(f"  {text}")
        self._show(f"{self._stage}: {text}")

    def note(self, text: str) -> None:
        self._line(text)

    def _line(self, text: str) -> None:
        self._console.print(Text(printable(text)), soft_wrap=True)

    def _show(self, text: str) -> None:
        if self._status is not None:
            self._status.update(Text(printable(text)))


def print_lines(*lines: str) -> None:
    """Print on standard output, each argument as one line: names of models cannot control the terminal."""
    for line in lines:
        print(printable(line))


@contextmanager
def exit_with_code(verbose: bool) -> Iterator[None]:
    """Every failure as text and exit code, none as a traceback."""
    try:
        yield
    except MinbuildError as error:
        _end(f"error: {error}", error.exit_code, verbose)
    except KeyboardInterrupt:
        _end("Stopped. Nothing was written.", 130, False)
    except BrokenPipeError:
        # Who reads us has seen enough. What is still to be flushed goes nowhere, so that nobody complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from None
    except (typer.Exit, SystemExit):
        raise
    except Exception as error:
        _end(
            f"internal error: {type(error).__name__}: {error}. This is a mistake in minbuild, not in your "
            "input: please report it with the command and what --verbose prints.",
            1,
            verbose,
        )


def _end(text: str, code: int, verbose: bool) -> None:
    if verbose:
        traceback.print_exc(file=sys.stderr)
    print(printable_lines(text), file=sys.stderr)
    raise typer.Exit(code)
