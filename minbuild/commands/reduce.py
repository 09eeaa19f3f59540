"""`minbuild reduce`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minbuild import reduce as reducing
from minbuild.authoring import Recipe, in_folder, make_artifacts
from minbuild.bindings import LANGUAGES
from minbuild.commands.accounts import Accounts
from minbuild.commands.common import (
    SIZES,
    ArtifactSets,
    Json,
    Largest,
    OpsFolders,
    Terminal,
    Verbose,
    failures,
    sizes_given,
)
from minbuild.commands.config import read_config
from minbuild.commands.making import Frozen, MadeFor, MadeWith, Train, recipe_of
from minbuild.commands.options import Chosen, configured
from minbuild.emit import PARTS
from minbuild.errors import BadInput
from minbuild.needs import Wishes
from minbuild.ort_config.requirements import union
from minbuild.report import console as console_report
from minbuild.report import json as json_report


@configured
def reduce(
    artifacts: ArtifactSets,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the package; one of minbuild's own is replaced.")
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(help="Machine to build for, such as aarch64-linux-musl. Repeatable. Default: this one."),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar=SIZES, help="Fix a free dimension, such as batch=8: the trainer is smaller. Repeatable."
        ),
    ] = None,
    max_: Largest = None,
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
        bool | None,
        typer.Option(
            "--check-loss/--no-check-loss",
            show_default=False,
            help="Training steps whose loss is infinite or no number fail, and leave gradients as they are.",
        ),
    ] = None,
    include_op: Annotated[
        list[str] | None,
        typer.Option(help="Operator to hold as well, such as Conv or com.microsoft:ConvGrad. Repeatable."),
    ] = None,
    require: Annotated[
        list[Path] | None,
        typer.Option(
            help="Configuration of ONNX Runtime's reduced build whose operators to hold as well. Repeatable."
        ),
    ] = None,
    exclude_op: Annotated[
        list[str] | None,
        typer.Option(help="Operator that must not be there: left out of --require. Repeatable."),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(help="Element types that kernels may have, such as float,int64. Default: all."),
    ] = None,
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
    bindings: Annotated[
        list[str] | None,
        typer.Option(
            help="Languages to put an API of into the package: "
            + "; ".join(f"{name}: {what}" for name, what in LANGUAGES.items())
            + ". Repeatable, or with commas; js includes --target wasm32.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="File with settings. Default: minbuild.toml or \\[tool.minbuild] of pyproject.toml beside ARTIFACTS."
        ),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Earlier report.json, or history, that growth is measured against.")
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(help="File to add a line to with the figures of this build, for minbuild diff."),
    ] = None,
    fast: Annotated[
        bool | None,
        typer.Option(
            "--fast/--no-fast",
            show_default=False,
            envvar="MINBUILD_FAST",
            help="Leave out of the report what takes many builds: what steps and operators are worth, and advice.",
        ),
    ] = None,
    loss: MadeWith = None,
    optimizer: MadeFor = None,
    train: Train = None,
    frozen: Frozen = None,
    ops_dir: OpsFolders = None,
    json_output: Json = False,
    verbose: Verbose = False,
    *,
    chosen: Chosen,
) -> None:
    """Build, prove and measure a trainer that holds nothing but what ARTIFACTS need, one for all of several; with
    --loss, a trainer of the forward model in an ONNX file."""
    with failures(verbose), Terminal(verbose) as terminal, ExitStack() as kept:
        folders = tuple(artifacts)
        if loss is not None:
            recipe = recipe_of(loss, optimizer or "adamw", train, frozen)
            folders = tuple(
                kept.enter_context(_made(path, recipe, tuple(ops_dir or ()), terminal)) for path in artifacts
            )
        elif train or frozen:
            raise BadInput("--train and --frozen are for a forward model: give it, and --loss.")
        request = reducing.Request(
            folders,
            out,
            tuple(target or ()),
            sizes_given("--dim", dim),
            sizes_given("--max", max_),
            cxx,
            cmake_toolchain,
            reference,
            tuple(ops_dir or ()),
            bool(check_loss),
            tuple(with_ or ()),
            tuple(export_output or ()),
            Wishes(
                tuple(include_op or ()),
                union([read_config(path) for path in require]) if require else None,
                tuple(exclude_op or ()),
                tuple(name for text in types or () for name in text.split(",")),
            ),
            bool(fast),
            tuple(bindings or ()),
            chosen.choices,
        )
        accounts = Accounts.open(chosen.budgets, chosen.path, baseline, history)
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


@contextmanager
def _made(model: Path, recipe: Recipe, ops_folders: tuple[Path, ...], terminal: Terminal) -> Iterator[Path]:
    """A folder with artifacts of a forward model."""
    terminal.stage(f"Making artifacts of {model}")
    made = make_artifacts(model, recipe, ops_folders, f"{model.stem}_")
    for note in made.notes:
        terminal.note(note)
    with in_folder(made) as folder:
        yield folder
