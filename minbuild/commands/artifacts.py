"""`minbuild artifacts`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minbuild.authoring import Recipe, make_artifacts, write_artifacts
from minbuild.authoring.losses import LOSSES, LossOptions
from minbuild.authoring.optimizers import OPTIMIZERS, OptimizerOptions
from minbuild.commands.common import OpsFolders, Verbose, failures

_LOSS_HELP = (
    "What to minimise: "
    + "; ".join(f"{n}: {loss.title}" for n, loss in LOSSES.items())
    + "; none: an output "
    "of the model."
)
_OPTIMIZER_HELP = "; ".join(f"{n}: {o.title}" for n, o in OPTIMIZERS.items()) + "; none."

Model = Annotated[Path, typer.Argument(help="ONNX file of the forward model.", metavar="MODEL")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the artifacts.")]
LossName = Annotated[str, typer.Option("--loss", help=_LOSS_HELP)]
OptimizerName = Annotated[str, typer.Option("--optimizer", help=_OPTIMIZER_HELP)]
Train = Annotated[
    list[str] | None,
    typer.Option(
        help="Parameters to train: a name, a pattern such as 'head.*', bias, or last:2. Repeatable."
    ),
]
Frozen = Annotated[list[str] | None, typer.Option(help="Parameters to keep as they are. Repeatable.")]


def artifacts(
    model: Model,
    out: Out,
    loss: LossName = "cross-entropy",
    optimizer: OptimizerName = "adamw",
    train: Train = None,
    frozen: Frozen = None,
    loss_input: Annotated[
        list[str] | None, typer.Option(help="Output the loss is taken of. Default: the first. Repeatable.")
    ] = None,
    output: Annotated[
        list[str] | None, typer.Option(help="Further value that training and evaluation return. Repeatable.")
    ] = None,
    reduction: Annotated[str, typer.Option(help="How the loss becomes one number: mean or sum.")] = "mean",
    ignore_index: Annotated[int | None, typer.Option(help="Class number that counts for nothing.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="How fast parameters decay.")] = None,
    momentum: Annotated[float | None, typer.Option(help="For --optimizer momentum.")] = None,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="For --optimizer momentum.")] = False,
    clip: Annotated[float | None, typer.Option(help="Largest norm of all gradients together.")] = None,
    prefix: Annotated[str, typer.Option(help="What the files' names begin with.")] = "",
    nominal: Annotated[bool, typer.Option("--nominal", help="Write a nominal checkpoint as well.")] = False,
    ops_dir: OpsFolders = None,
    verbose: Verbose = False,
) -> None:
    """Make training artifacts from a forward MODEL: gradients, loss, optimizer, checkpoint."""
    with failures(verbose):
        recipe = Recipe(
            loss="" if loss == "none" else loss,
            loss_inputs=tuple(loss_input or ()),
            loss_options=LossOptions(reduction=reduction, ignore_index=ignore_index),
            optimizer=optimizer,
            optimizer_options=OptimizerOptions(
                weight_decay=weight_decay, momentum=momentum, nesterov=nesterov or None, max_norm=clip
            ),
            train=tuple(train or ()),
            frozen=tuple(frozen or ()),
            outputs=tuple(output or ()),
            nominal=nominal,
        )
        made = make_artifacts(model, recipe, tuple(ops_dir or ()), prefix)
        write_artifacts(made, out)
        for note in made.notes:
            print(f"note: {note}")
        for name, content in sorted(made.files.items()):
            print(f"{out / name}  {len(content):,} bytes")
