"""`minbuild artifacts`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from minbuild.authoring import GeneratedArtifacts, Recipe, make_artifacts, read_source, write_artifacts
from minbuild.authoring.autodiff.gradcheck import checked_gradients
from minbuild.authoring.losses import LossOptions
from minbuild.authoring.optimizers import OPTIMIZERS, OptimizerOptions
from minbuild.authoring.training_info.model_builder import make_training_model
from minbuild.cli.progress import SIZES, OpsFolders, Verbose, exit_with_code, parse_sizes, print_lines
from minbuild.cli.training_options import (
    LOSS,
    OPTIMIZER,
    PARAMETERS,
    Frozen,
    GrowthInterval,
    Lora,
    LoraAlpha,
    LoraRank,
    LossName,
    LossScaleText,
    OptimizerName,
    Train,
    lora_options,
    parse_loss_scale,
    parse_numbers,
    parse_pair,
    require_all,
)
from minbuild.errors import BadInput
from minbuild.ops import registry
from minbuild.planning.estimate import estimate

EXAMPLES = """[bold]Examples[/bold]

A classifier, whose labels become an input of the training model:

    minbuild artifacts model.onnx --out artifacts/

Only the last layer, with momentum, and gradients checked before hours are spent:

    minbuild artifacts model.onnx -o artifacts/ --train last:1 --optimizer momentum --check-gradients

A head that trains on a backbone that does not, but may come from another checkpoint:

    minbuild artifacts model.onnx -o artifacts/ --train 'head.*' --frozen 'backbone.*'

Adapters of rank 4 beside the attention's weights, and nothing else:

    minbuild artifacts model.onnx -o artifacts/ --lora 'attn.*' --lora-rank 4

The model computes its loss itself, or a small ONNX file does:

    minbuild artifacts model.onnx -o artifacts/ --loss none --loss-output total
    minbuild artifacts model.onnx -o artifacts/ --loss my_loss.onnx --loss-input y --loss-input z

Targets are a further input of the models: "labels" for class numbers, else "target".

Gradients add up over training steps until they are reset: small batches can make a large one."""

_CHECKS, _FILES = "Checks", "Files"
_NUMBERS = "Numbers with commas between, or an .npy file."
Model = Annotated[
    Path,
    typer.Argument(help="ONNX file or torch.export program (.pt2) of the forward model.", metavar="MODEL"),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the artifacts.", rich_help_panel=_FILES)]


def _defaults(option: str) -> str:
    """Those of the optimizers that take an option."""
    found = {n: getattr(o.defaults, option) for n, o in OPTIMIZERS.items()}
    return ", ".join(f"{value:g} for {name}" for name, value in found.items() if value is not None)


def _loss(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=LOSS)


def _optimizer(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=OPTIMIZER)


def _flag(name: str, text: str, panel: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel)


def artifacts(
    model: Model,
    out: Out,
    loss: LossName = "cross-entropy",
    loss_input: Annotated[
        list[str] | None, _loss("Output the loss is taken of. Default: the first. Repeatable.")
    ] = None,
    loss_output: Annotated[
        str, _loss("With --loss none: the output that is the loss. Default: the first.")
    ] = "",
    reduction: Annotated[str, _loss("Reduction of the loss to one number: mean or sum.")] = "mean",
    class_weights: Annotated[
        str | None, _loss(f"For cross-entropy and nll: weight of each class. {_NUMBERS}")
    ] = None,
    ignore_index: Annotated[
        int | None, _loss("For cross-entropy and nll: class number that counts for nothing.")
    ] = None,
    pos_weight: Annotated[str | None, _loss(f"For bce: weight of positive targets. {_NUMBERS}")] = None,
    delta: Annotated[float, _loss("For huber: where it turns from square to straight.")] = 1.0,
    optimizer: OptimizerName = "adamw",
    weight_decay: Annotated[
        float | None, _optimizer("Weight decay, with all optimizers but sgd. Default: 0.")
    ] = None,
    betas: Annotated[
        str | None,
        _optimizer(
            "For adam and adamw: how much of the means of gradients and squares stays. Default: 0.9,0.999."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        _optimizer(f"Addend of divisors, for numerical stability. Default: {_defaults('epsilon')}."),
    ] = None,
    alpha: Annotated[
        float | None,
        _optimizer(f"Smoothing constant (alpha) of the mean of squares. Default: {_defaults('alpha')}."),
    ] = None,
    momentum: Annotated[
        float | None,
        _optimizer(
            f"Momentum: the share of the last step that is added to the next. Default: {_defaults('momentum')}."
        ),
    ] = None,
    nesterov: Annotated[
        bool, _flag("--nesterov", "For momentum: look ahead, as Nesterov does.", OPTIMIZER)
    ] = False,
    clip: Annotated[
        float | None, _optimizer("Largest norm of all gradients together. Default: none.")
    ] = None,
    loss_scale: LossScaleText = None,
    growth_interval: GrowthInterval = None,
    train: Train = None,
    frozen: Frozen = None,
    lora: Lora = None,
    lora_rank: LoraRank = 8,
    lora_alpha: LoraAlpha = None,
    stop_gradient: Annotated[
        list[str] | None,
        typer.Option(help="Value that no gradient flows into. Repeatable.", rich_help_panel=PARAMETERS),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            "--dim",
            metavar=SIZES,
            help="Fix a free dimension of the model's inputs, such as seq=128, or an input that is one number, "
            "such as sr=16000. Repeatable.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    max_dim: Annotated[
        list[str] | None,
        typer.Option(
            "--max-dim",
            metavar=SIZES,
            help="Largest number that an input says how often a loop runs with, such as steps=20. Repeatable.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            help="Further value that training and evaluation return. Repeatable.", rich_help_panel=_FILES
        ),
    ] = None,
    prefix: Annotated[str, typer.Option(help="Prefix of the file names.", rich_help_panel=_FILES)] = "",
    nominal: Annotated[
        bool,
        _flag(
            "--nominal", "Write a checkpoint without parameters as well, which come from elsewhere.", _FILES
        ),
    ] = False,
    ort: Annotated[
        bool,
        _flag(
            "--ort",
            "Write the models in ONNX Runtime's own format as well, with configurations of builds for them.",
            _FILES,
        ),
    ] = False,
    training_info: Annotated[
        bool,
        _flag(
            "--training-info", "Write one model that carries its own training instead of artifacts.", _FILES
        ),
    ] = False,
    check_gradients: Annotated[
        bool, _flag("--check-gradients", "Compare the gradients with finite differences first.", _CHECKS)
    ] = False,
    estimated: Annotated[
        bool, _flag("--estimate", "Print what the trainer will need of memory and kernels.", _CHECKS)
    ] = False,
    ops_dir: OpsFolders = None,
    verbose: Verbose = False,
) -> None:
    """Make training artifacts from a forward MODEL: gradients, loss, optimizer, checkpoint."""
    with exit_with_code(verbose):
        weights, positive, decays, sizes, largest, adapters, scale = require_all(
            lambda: parse_numbers("--class-weights", class_weights),
            lambda: parse_numbers("--pos-weight", pos_weight),
            lambda: parse_pair("--betas", betas),
            lambda: parse_sizes("--dim", dim),
            lambda: parse_sizes("--max-dim", max_dim),
            lambda: lora_options(lora, lora_rank, lora_alpha),
            lambda: parse_loss_scale(loss_scale, growth_interval),
        )
        recipe = Recipe(
            loss="" if loss == "none" else loss,
            loss_output=loss_output,
            loss_inputs=tuple(loss_input or ()),
            loss_options=LossOptions(
                reduction=reduction,
                class_weights=weights,
                ignore_index=ignore_index,
                pos_weight=positive,
                delta=delta,
            ),
            optimizer=optimizer,
            optimizer_options=OptimizerOptions(
                betas=decays,
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
            sizes=sizes,
            largest=largest,
            lora=adapters,
            loss_scale=scale,
            nominal=nominal,
            ort=ort,
        )
        if training_info:
            _check_training_info(check_gradients, estimated, nominal, ort, scale is not None)
            made = make_training_model(read_source(model), recipe, registry(tuple(ops_dir or ())), prefix)
        else:
            made = make_artifacts(model, recipe, tuple(ops_dir or ()), prefix)
        if check_gradients:
            print_lines(*checked_gradients(made, tuple(ops_dir or ())))
        removed = write_artifacts(made, out)
        _print_files(made, out)
        for name in removed:
            print_lines(f"{out / name}  removed: it was of an earlier set")
        if estimated:
            print_lines(*estimate(made, tuple(ops_dir or ())))


def _check_training_info(*others: bool) -> None:
    if any(others):
        raise BadInput(
            "--training-info: --check-gradients, --estimate, --loss-scale, --nominal and --ort are about artifacts. "
            "Leave them out."
        )


def _print_files(made: GeneratedArtifacts, out: Path) -> None:
    for note in made.notes:
        print_lines(f"note: {note}")
    for name, content in sorted(made.files.items()):
        print_lines(f"{out / name}  {len(content):,} bytes")
