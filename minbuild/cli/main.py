"""The program: its help, its commands, its way to end."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from minbuild import __version__
from minbuild.cli import (
    artifacts,
    cache,
    check,
    diff,
    export,
    fleet,
    history,
    ort_config,
    reduce,
    scan,
    split,
    why,
)

app = typer.Typer(
    name="minbuild",
    help="Turn ONNX Runtime training artifacts into the smallest trainer that computes the same numbers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""[bold]Examples[/bold]

Which operators does a model use, and are they all supported?

    minbuild scan artifacts/

A trainer for this machine, with the size report in dist/report/:

    minbuild reduce artifacts/ --out dist/

For another target, and batches of 8 only, which is smaller still:

    minbuild reduce artifacts/ -o dist/ --target aarch64-linux-musl --dim batch=8

One library for several models; can it train another one without rebuilding?

    minbuild reduce a/ b/ --out dist/
    minbuild check c/ --package dist/

What changed since the last build?

    minbuild diff old/report.json dist/report/report.json

Exit codes: 0 fine, 1 internal error, 2 bad input, 3 unsupported operator or type, 4 compiler failed,
5 over budget, 6 verification failed, 130 interrupted.""",
)


def _version(requested: bool) -> None:
    if requested:
        print(f"minbuild {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


_EPILOGS = {"artifacts": artifacts.EXAMPLES, "split": split.EXAMPLES, "fleet": fleet.EXAMPLES}

for command in (
    *(reduce.reduce, fleet.fleet, scan.scan, artifacts.artifacts, split.split, ort_config.ort_config),
    *(check.check, diff.diff, history.history, export.export, why.why, why.explain, cache.cache),
):
    app.command(command.__name__.replace("_", "-"), epilog=_EPILOGS.get(command.__name__))(command)


def _terminated(number: int, frame: object) -> None:
    """Leave by way of every `finally`, as Ctrl-C does."""
    raise SystemExit(128 + number)


def main() -> None:
    """The program."""
    signal.signal(signal.SIGTERM, _terminated)
    app()


if __name__ == "__main__":
    main()
