"""Options that say how a model is to be trained, shared by commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from minbuild.authoring import Recipe
from minbuild.authoring.losses import LOSSES
from minbuild.authoring.optimizers import OPTIMIZERS
from minbuild.authoring.recipe import LoraOptions, LossScale
from minbuild.errors import BadInput
from minbuild.frontend.files import read_array

_LOSS_HELP = (
    "Loss to minimise: "
    + "; ".join(f"{n}: {loss.title}" for n, loss in LOSSES.items())
    + "; an .onnx file of your own; none: an output of the model."
)
_OPTIMIZER_HELP = (
    "Optimizer: "
    + "; ".join(f"{n}: {o.title}" for n, o in OPTIMIZERS.items())
    + "; an .onnx file with an optimizer model; none."
)

LOSS, OPTIMIZER, PARAMETERS = "Loss", "Optimizer", "Parameters"  # panels of the help
LossName = Annotated[str, typer.Option("--loss", metavar="LOSS", help=_LOSS_HELP, rich_help_panel=LOSS)]
MadeWith = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="LOSS",
        help=f"Make the artifacts first, of a forward model. {_LOSS_HELP}",
        rich_help_panel=LOSS,
    ),
]
OptimizerName = Annotated[
    str, typer.Option("--optimizer", metavar="OPTIMIZER", help=_OPTIMIZER_HELP, rich_help_panel=OPTIMIZER)
]
MadeFor = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        metavar="OPTIMIZER",
        help=f"{_OPTIMIZER_HELP} Default: adamw.",
        rich_help_panel=OPTIMIZER,
    ),
]
Train = Annotated[
    list[str] | None,
    typer.Option(
        help="Parameters to train: a name; a pattern such as 'head.*'; bias, for what layers add; last:2, for those of "
        "the last two layers. Nothing below the first of them is differentiated or kept. Default: all. Repeatable.",
        metavar="PARAMETERS",
        rich_help_panel=PARAMETERS,
    ),
]
Frozen = Annotated[
    list[str] | None,
    typer.Option(
        help="Parameters to keep as they are, in the same words, or rest: all that do not train. They stand in the "
        "checkpoint, and so may come from another one; what is in neither list is constant. Repeatable.",
        metavar="PARAMETERS",
        rich_help_panel=PARAMETERS,
    ),
]

LossScaleText = Annotated[
    str | None,
    typer.Option(
        "--loss-scale",
        help="Factor of the loss in the backward pass, for models in half precision, whose small gradients would "
        "underflow: a power of two such as 1024, or dynamic: 32768, halved where gradients overflow, for which no "
        "update is made, and doubled after many updates. Gradients are divided by it before anything reads them.",
        metavar="SCALE|dynamic",
        rich_help_panel=LOSS,
    ),
]
GrowthInterval = Annotated[
    int | None,
    typer.Option(
        "--growth-interval",
        help="Updates after which a dynamic loss scale doubles. Default: 2000.",
        metavar="STEPS",
        rich_help_panel=LOSS,
    ),
]

STEP = "Training step"
State = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        help="The model is a whole training step: an input and the output that is its next value, such as w=w_next, "
        "or a JSON file with an object of such pairs. Default: what names pair (w and w_next, m_in and m_out). "
        "Repeatable.",
        metavar="INPUT=OUTPUT",
        rich_help_panel=STEP,
    ),
]
StateValues = Annotated[
    Path | None,
    typer.Option(
        "--state-values",
        help="First values of states, by name. Default: those in the model, else zeros.",
        metavar="FILE.npz",
        rich_help_panel=STEP,
    ),
]
Lora = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        help="Weights beside whose layers low-rank adapters train in place of all parameters: names or patterns, such "
        "as 'attn.*'. With --train, parameters named there train as well. Repeatable.",
        metavar="WEIGHTS",
        rich_help_panel=PARAMETERS,
    ),
]
LoraRank = Annotated[
    int, typer.Option("--lora-rank", help="Rank of the adapters.", rich_help_panel=PARAMETERS)
]
LoraAlpha = Annotated[
    float | None,
    typer.Option(
        "--lora-alpha",
        help="Adapters are scaled by alpha / rank. Default: the rank.",
        rich_help_panel=PARAMETERS,
    ),
]


def lora_options(weights: list[str] | None, rank: int, alpha: float | None) -> LoraOptions:
    """The adapters that are asked for: `weights` are names or patterns, `rank` is the inner dimension, `alpha` the
    scale times the rank. Raises BadInput where they are described and not asked for."""
    if not weights and (rank != LoraOptions().rank or alpha is not None):
        raise BadInput("--lora-rank and --lora-alpha do nothing without --lora. Name the weights with it.")
    return LoraOptions(tuple(weights or ()), rank, alpha)


def parse_loss_scale(text: str | None, interval: int | None) -> LossScale | None:
    """The loss scale that is asked for: `text` is a number or `dynamic`, `interval` that of a dynamic one. Raises
    BadInput."""
    if interval is not None and interval < 1:
        raise BadInput(f"--growth-interval {interval}: give a number of updates, 1 or more.")
    if text == "dynamic":
        return LossScale(growth_interval=2000 if interval is None else interval)
    if interval is not None:
        raise BadInput("--growth-interval does nothing without --loss-scale dynamic.")
    if text is None:
        return None
    try:
        return LossScale(float(text))
    except ValueError:
        raise BadInput(f"--loss-scale {text}: give a power of two, such as 1024, or dynamic.") from None


def recipe_of(
    loss: str,
    optimizer: str,
    train: list[str] | None,
    frozen: list[str] | None,
    *,
    scale: LossScale | None = None,
) -> Recipe:
    """A recipe of `loss` and `optimizer`, by kind, of `train` and `frozen`, names, patterns or words as in `Recipe`,
    and of a loss `scale`; everything else by default."""
    return Recipe(
        loss="" if loss == "none" else loss,
        optimizer=optimizer,
        train=tuple(train or ()),
        frozen=tuple(frozen or ()),
        loss_scale=scale,
    )


def parse_numbers(option: str, text: str | None) -> np.ndarray | None:
    """`1,2.5` or the path of an .npy file. Raises BadInput."""
    if text is None:
        return None
    if text.endswith(".npy"):
        return read_array(Path(text))
    try:
        numbers = np.array([float(part) for part in text.split(",")])
    except ValueError:
        raise BadInput(
            f"{option} {text}: no numbers. Write them with commas between, or give an .npy file."
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def require_all(*reads: Callable[[], Any]) -> list[Any]:
    """The options that are given; raise for those that are missing. Raises BadInput with everything that cannot be
    read."""
    found = []
    findings = []
    for read in reads:
        try:
            found.append(read())
        except BadInput as error:
            findings.append(str(error))
    if findings:
        raise BadInput("\n".join(findings))
    return found


def parse_pair(option: str, text: str | None) -> tuple[float, float] | None:
    """`0.9,0.999`. Raises BadInput."""
    numbers = parse_numbers(option, text)
    if numbers is None:
        return None
    if numbers.shape != (2,):
        raise BadInput(f"{option} {text}: two numbers are expected, such as 0.9,0.999.")
    return float(numbers[0]), float(numbers[1])
