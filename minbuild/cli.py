"""The commands: arguments in, one call, text out."""

from __future__ import annotations

import json
import os
import signal
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

from minbuild import __version__
from minbuild import reduce as reducing
from minbuild import scan as scanning
from minbuild.errors import BadInput, MinbuildError
from minbuild.planned import DEFAULT_LARGEST
from minbuild.report import console as console_report
from minbuild.report import json as json_report

app = typer.Typer(
    name="minbuild",
    help="Turn ONNX Runtime training artifacts into the smallest trainer that computes the same numbers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""[bold]Examples[/bold]

What does a model ask for, and is all of it supported?

    minbuild scan artifacts/

A trainer for this machine, with the report on the terminal and in dist/report/:

    minbuild reduce artifacts/ --out dist/

For another machine, and batches of 8 only, which is smaller still:

    minbuild reduce artifacts/ -o dist/ --target aarch64-linux-musl --dim batch=8

Exit codes: 0 fine, 1 internal error, 2 bad input, 3 unsupported operator or type, 4 compiler failed,
5 over budget, 6 verification failed, 130 interrupted.""",
)

Artifacts = Annotated[
    Path,
    typer.Argument(help="Folder that generate_artifacts wrote.", metavar="ARTIFACTS", show_default=False),
]
OpsFolders = Annotated[
    list[Path] | None,
    typer.Option(
        "--ops-dir", help="Folder with operators of your own: <stem>.py beside <stem>.cc. Repeatable."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print passes, builds, and tracebacks.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"minbuild {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command("reduce")
def reduce_command(
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
    ops_dir: OpsFolders = None,
    json_output: Json = False,
    verbose: Verbose = False,
) -> None:
    """Build, prove and measure a trainer that holds nothing but what ARTIFACTS need."""
    with _failures(verbose), _Terminal(verbose) as terminal:
        request = reducing.Request(
            artifacts,
            out,
            tuple(target or ()),
            _sizes("--dim", dim),
            _sizes("--max", max_),
            cxx,
            cmake_toolchain,
            reference,
            tuple(ops_dir or ()),
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


@app.command("scan")
def scan_command(
    artifacts: Artifacts, ops_dir: OpsFolders = None, json_output: Json = False, verbose: Verbose = False
) -> None:
    """List the operators ARTIFACTS ask for, and everything that is not supported."""
    with _failures(verbose):
        answer = scanning.scan(artifacts, tuple(ops_dir or ()))
        if json_output:
            print(json.dumps(scanning.as_dict(answer), indent=1, ensure_ascii=False))
        else:
            screen = Console(highlight=False)
            scanning.print_scan(answer, screen if screen.is_terminal else Console(highlight=False, width=160))
        scanning.check(answer)


def _sizes(option: str, texts: list[str] | None) -> dict[str, int]:
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


class _Terminal:
    """Progress on standard error: a spinner where there is a terminal, else a line per stage."""

    def __init__(self, verbose: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._verbose = verbose
        self._status: Status | None = None
        self._stage = ""

    def __enter__(self) -> _Terminal:
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
        self._console.print(Text(text), soft_wrap=True)

    def _show(self, text: str) -> None:
        if self._status is not None:
            self._status.update(Text(text))


@contextmanager
def _failures(verbose: bool) -> Iterator[None]:
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
    print(text, file=sys.stderr)
    raise typer.Exit(code)


def _terminated(number: int, frame: object) -> None:
    """Leave by way of every `finally`, as Ctrl-C does."""
    raise SystemExit(128 + number)


def main() -> None:
    """The program."""
    signal.signal(signal.SIGTERM, _terminated)
    app()


if __name__ == "__main__":
    main()
