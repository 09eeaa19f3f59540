"""`minbuild split`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minbuild import pipeline
from minbuild.authoring import Recipe, make_artifacts, read_source, write_artifacts
from minbuild.authoring.recipe import GeneratedArtifacts
from minbuild.authoring.split import Split, split_model
from minbuild.cli import build_options as building
from minbuild.cli.artifacts import Model
from minbuild.cli.progress import (
    SIZES,
    Largest,
    OpsFolders,
    Terminal,
    Verbose,
    exit_with_code,
    parse_sizes,
    print_lines,
)
from minbuild.cli.training_options import Frozen, LossName, OptimizerName, Train
from minbuild.ir import TensorType
from minbuild.ir.pieces import FileContent
from minbuild.ops import registry

EXAMPLES = """[bold]Examples[/bold]

The last two layers train; the rest runs once per sample, in any runtime, or on an NPU:

    minbuild split model.onnx --out split/ --train last:2 --loss cross-entropy

For a microcontroller, with the files of the tail only, to reduce with further options:

    minbuild split model.onnx --out split/ --train 'head.*' --no-build
    minbuild reduce split/artifacts --out dist/ --target cortex-m4f --profile smallest --dim batch=1"""


def split(
    model: Model,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Folder for backbone.onnx, tail.onnx, artifacts/ and the package dist/ of the tail.",
        ),
    ],
    train: Train = None,
    frozen: Frozen = None,
    loss: LossName = "cross-entropy",
    optimizer: OptimizerName = "adamw",
    output: Annotated[
        list[str] | None, typer.Option(help="Further value that training and evaluation return. Repeatable.")
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar=SIZES, help="Fix a free dimension of the model's inputs. Repeatable."),
    ] = None,
    target: building.Targets = None,
    max_dim: Largest = None,
    build: Annotated[
        bool, typer.Option("--build/--no-build", help="Build the tail's trainer, with the default options.")
    ] = True,
    force: building.Force = False,
    ops_dir: OpsFolders = None,
    verbose: Verbose = False,
) -> None:
    """Cut a forward MODEL where training begins: a backbone for any runtime, run once per sample, and a trainer of the
    tail that takes its features."""
    with exit_with_code(verbose), Terminal(verbose) as terminal:
        recipe = Recipe(
            loss="" if loss == "none" else loss,
            optimizer=optimizer,
            train=tuple(train or ()),
            frozen=tuple(frozen or ()),
            outputs=tuple(output or ()),
            sizes=parse_sizes("--dim", dim),
        )
        folders = tuple(ops_dir or ())
        terminal.stage(f"Splitting {model}")
        made = split_model(read_source(model), recipe, registry(folders))
        artifacts = make_artifacts(made.tail, made.recipe(recipe), folders)
        for note in dict.fromkeys((*made.notes, *artifacts.notes)):
            terminal.note(note)
        files = made.files()
        write_artifacts(GeneratedArtifacts(files, ()), out)
        write_artifacts(artifacts, out / "artifacts")
        package = out / "dist"
        if build:
            request = pipeline.Request(
                (out / "artifacts",),
                out=package,
                targets=tuple(target or ()),
                largest=parse_sizes("--max-dim", max_dim),
                ops_folders=folders,
                analysis=False,
                force=force,
            )
            pipeline.reduce(request, terminal)
        terminal.done()
        print_lines(*_summary(made, files, out))
        if build:
            print_lines(f"{package}  the tail's trainer: start with {package / 'README.md'}")


def _summary(made: Split, files: dict[str, FileContent], out: Path) -> list[str]:
    """Lines on what was written, and what travels between the two."""
    lines = [f"{out / name}  {len(data):,} bytes" for name, data in sorted(files.items())]
    lines += [f"feature {name}: {_type(tensor)}" for name, tensor in made.features.items()]
    size = made.feature_bytes
    lines += (
        []
        if size is None
        else [f"A sample's features take {size:,} bytes. Compute them once, and keep them."]
    )
    lines.append(f"The tail trains {', '.join(made.train)}.")
    return lines


def _type(tensor: TensorType) -> str:
    return f"{tensor.element.dtype}[{', '.join(map(str, tensor.shape or ()))}]"
