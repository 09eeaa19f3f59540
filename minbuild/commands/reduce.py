"""`minbuild reduce`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minbuild import reduce as reducing
from minbuild.authoring import in_folder, make_artifacts
from minbuild.commands.accounts import Accounts
from minbuild.commands.common import Artifacts, Json, OpsFolders, Terminal, Verbose, failures, sizes_given
from minbuild.commands.making import Frozen, MadeWith, OptimizerName, Train, recipe_of
from minbuild.emit import PARTS
from minbuild.errors import BadInput
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
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="Parts that the library has only if asked for: "
            + "; ".join(f"{name}: {what}" for name, (_, what) in PARTS.items())
            + ". Repeatable, or with commas.",
        ),
    ] = None,
    export_output: Annotated[
        list[str] | None,
        typer.Option(
            help="Output of exported inference models. Default: what the loss is taken of. Repeatable; includes "
            "--with export."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="File with settings. Default: minbuild.toml or [tool.minbuild] of pyproject.toml beside ARTIFACTS."
        ),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Earlier report.json, or history, that growth is measured against.")
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(help="File to add a line to with the figures of this build, for minbuild diff."),
    ] = None,
    loss: MadeWith = None,
    optimizer: OptimizerName = "adamw",
    train: Train = None,
    frozen: Frozen = None,
    ops_dir: OpsFolders = None,
    json_output: Json = False,
    verbose: Verbose = False,
) -> None:
    """Build, prove and measure a trainer that holds nothing but what ARTIFACTS need; with --loss, a trainer of the
    forward model in an ONNX file."""
    with failures(verbose), Terminal(verbose) as terminal, ExitStack() as kept:
        folder = artifacts
        if loss is not None:
            terminal.stage(f"Making artifacts of {artifacts}")
            recipe = recipe_of(loss, optimizer, train, frozen)
            made = make_artifacts(artifacts, recipe, tuple(ops_dir or ()), f"{artifacts.stem}_")
            for note in made.notes:
                terminal.note(note)
            folder = kept.enter_context(in_folder(made))
        elif train or frozen:
            raise BadInput("--train and --frozen are for a forward model: give it, and --loss.")
        request = reducing.Request(
            folder,
            out,
            tuple(target or ()),
            sizes_given("--dim", dim),
            sizes_given("--max", max_),
            cxx,
            cmake_toolchain,
            reference,
            tuple(ops_dir or ()),
            check_loss,
            tuple(with_ or ()),
            tuple(export_output or ()),
        )
        accounts = Accounts.open((artifacts,), config, baseline, history)
        report = reducing.reduce(request, terminal)
        terminal.done()
        if json_output:
            print(json_report.render(report), end="")
            accounts.close(report)
            return
        screen = Console()
        width = screen.width if screen.is_terminal else 100
        print(console_report.render(report, color=screen.is_terminal, width=width), end="")
        print(
            f"Package: {out} (start with {out / 'README.md'}; the report is {out / 'report' / 'report.html'})"
        )
        accounts.close(report)
