"""Options that say how a model is to be trained, shared by commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from minbuild.artifacts.files import read_array
from minbuild.authoring import Recipe
from minbuild.authoring.losses import LOSSES
from minbuild.authoring.optimizers import OPTIMIZERS
from minbuild.errors import BadInput

_LOSS_HELP = (
    "What to minimise: "
    + "; ".join(f"{n}: {loss.title}" for n, loss in LOSSES.items())
    + "; an .onnx file of your own; none: an output of the model."
)
_OPTIMIZER_HELP = "; ".join(f"{n}: {o.title}" for n, o in OPTIMIZERS.items()) + "; none."

LossName = Annotated[str, typer.Option("--loss", help=_LOSS_HELP)]
MadeWith = Annotated[
    str | None, typer.Option("--loss", help=f"Make the artifacts first, of a forward model. {_LOSS_HELP}")
]
OptimizerName = Annotated[str, typer.Option("--optimizer", help=_OPTIMIZER_HELP)]
Train = Annotated[
    list[str] | None,
    typer.Option(
        help="Parameters to train: a name, a pattern such as 'head.*', bias, or last:2. Repeatable."
    ),
]
Frozen = Annotated[list[str] | None, typer.Option(help="Parameters to keep as they are. Repeatable.")]


def recipe_of(loss: str, optimizer: str, train: list[str] | None, frozen: list[str] | None) -> Recipe:
    """A recipe of these, everything else by default."""
    return Recipe(
        loss="" if loss == "none" else loss,
        optimizer=optimizer,
        train=tuple(train or ()),
        frozen=tuple(frozen or ()),
    )


def numbers_given(option: str, text: str | None) -> np.ndarray | None:
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


def pair_given(option: str, text: str | None) -> tuple[float, float] | None:
    """`0.9,0.999`. Raises BadInput."""
    numbers = numbers_given(option, text)
    if numbers is None:
        return None
    if numbers.shape != (2,):
        raise BadInput(f"{option} {text}: two numbers are wanted, such as 0.9,0.999.")
    return float(numbers[0]), float(numbers[1])
