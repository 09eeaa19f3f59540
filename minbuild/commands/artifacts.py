"""`minbuild artifacts`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minbuild.authoring import Artifacts, Recipe, make_artifacts, read_source, write_artifacts
from minbuild.authoring.checks import checked_gradients
from minbuild.authoring.estimate import estimate
from minbuild.authoring.losses import LossOptions
from minbuild.authoring.optimizers import OptimizerOptions
from minbuild.authoring.training_model import make_training_model
from minbuild.commands.common import OpsFolders, Verbose, failures
from minbuild.commands.making import Frozen, LossName, OptimizerName, Train, numbers_given, pair_given
from minbuild.errors import BadInput
from minbuild.ops import registry

Model = Annotated[Path, typer.Argument(help="ONNX file of the forward model.", metavar="MODEL")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the artifacts.")]
_NUMBERS = "Numbers with commas between, or an .npy file."


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
    loss_output: Annotated[
        str, typer.Option(help="With --loss none: the output that is the loss. Default: the first.")
    ] = "",
    output: Annotated[
        list[str] | None, typer.Option(help="Further value that training and evaluation return. Repeatable.")
    ] = None,
    stop_gradient: Annotated[
        list[str] | None, typer.Option(help="Value that no gradient flows into. Repeatable.")
    ] = None,
    reduction: Annotated[str, typer.Option(help="How the loss becomes one number: mean or sum.")] = "mean",
    class_weights: Annotated[
        str | None, typer.Option(help=f"For cross-entropy and nll: weight of each class. {_NUMBERS}")
    ] = None,
    ignore_index: Annotated[int | None, typer.Option(help="Class number that counts for nothing.")] = None,
    pos_weight: Annotated[
        str | None, typer.Option(help=f"For bce: weight of positive targets. {_NUMBERS}")
    ] = None,
    delta: Annotated[float, typer.Option(help="For huber: where it turns from square to straight.")] = 1.0,
    weight_decay: Annotated[float | None, typer.Option(help="How fast parameters decay.")] = None,
    betas: Annotated[str | None, typer.Option(help="For adam and adamw, such as 0.9,0.999.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="What adaptive optimizers add to a divisor.")] = None,
    alpha: Annotated[float | None, typer.Option(help="For rmsprop: how much of the mean stays.")] = None,
    momentum: Annotated[float | None, typer.Option(help="For --optimizer momentum.")] = None,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="For --optimizer momentum.")] = False,
    clip: Annotated[float | None, typer.Option(help="Largest norm of all gradients together.")] = None,
    prefix: Annotated[str, typer.Option(help="What the files' names begin with.")] = "",
    nominal: Annotated[bool, typer.Option("--nominal", help="Write a nominal checkpoint as well.")] = False,
    check_gradients: Annotated[
        bool, typer.Option("--check-gradients", help="Compare the gradients with finite differences first.")
    ] = False,
    estimated: Annotated[
        bool, typer.Option("--estimate", help="Print what the trainer will need of memory and kernels.")
    ] = False,
    training_info: Annotated[
        bool,
        typer.Option(
            "--training-info", help="Write one model that carries its own training instead of artifacts."
        ),
    ] = False,
    ops_dir: OpsFolders = None,
    verbose: Verbose = False,
) -> None:
    """Make training artifacts from a forward MODEL: gradients, loss, optimizer, checkpoint."""
    with failures(verbose):
        recipe = Recipe(
            loss="" if loss == "none" else loss,
            loss_output=loss_output,
            loss_inputs=tuple(loss_input or ()),
            loss_options=LossOptions(
                reduction=reduction,
                class_weights=numbers_given("--class-weights", class_weights),
                ignore_index=ignore_index,
                pos_weight=numbers_given("--pos-weight", pos_weight),
                delta=delta,
            ),
            optimizer=optimizer,
            optimizer_options=OptimizerOptions(
                betas=pair_given("--betas", betas),
                epsilon=epsilon,
                alpha=alpha,
                weight_decay=weight_decay,
                momentum=momentum,
                nesterov=nesterov or None,
                max_norm=clip,
            ),
            train=tuple(train or ()),
            frozen=tuple(frozen or ()),
            outputs=tuple(output or ()),
            stops=tuple(stop_gradient or ()),
            nominal=nominal,
        )
        if training_info:
            _check_training_info(check_gradients, estimated, nominal)
            made = make_training_model(read_source(model), recipe, registry(tuple(ops_dir or ())), prefix)
        else:
            made = make_artifacts(model, recipe, tuple(ops_dir or ()), prefix)
        if check_gradients:
            print("\n".join(checked_gradients(made, tuple(ops_dir or ()))))
        write_artifacts(made, out)
        _tell(made, out)
        if estimated:
            print("\n".join(estimate(made, tuple(ops_dir or ()))))


def _check_training_info(*others: bool) -> None:
    if any(others):
        raise BadInput(
            "--training-info: --check-gradients, --estimate and --nominal are about artifacts. Leave them out."
        )


def _tell(made: Artifacts, out: Path) -> None:
    for note in made.notes:
        print(f"note: {note}")
    for name, content in sorted(made.files.items()):
        print(f"{out / name}  {len(content):,} bytes")
