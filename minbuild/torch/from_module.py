"""A trainer of a PyTorch module, in one call.

import minbuild.torch
trainer = minbuild.torch.reduce(module, (images,), loss="cross-entropy", train="head.*", out="dist")
for images, labels in data:
    loss = trainer.step(images, labels)
minbuild.torch.copy_parameters(trainer, module)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.authoring import Recipe, in_directory, make_artifacts, source_of
from minbuild.authoring.bounded_loops import bounding_inputs
from minbuild.errors import BadInput
from minbuild.frontend.pytorch import read_module
from minbuild.options.build_options import DEFAULT, PROFILES, in_profile
from minbuild.options.did_you_mean import did_you_mean
from minbuild.pipeline import Request
from minbuild.pipeline import reduce as reduce_artifacts
from minbuild.torch.losses import loss_of
from minbuild.torch.optimizers import optimizer_of
from minbuild.training.trainer import Trainer


def reduce(
    module: Any,
    example_inputs: Any = (),
    loss: Any = "cross-entropy",
    train: str | Sequence[str] = (),
    *,
    frozen: str | Sequence[str] = (),
    optimizer: Any = "adamw",
    target: str | Sequence[str] = (),
    out: str | os.PathLike[str] = "dist",
    outputs: str | Sequence[str] = (),
    components: str | Sequence[str] = (),
    dims: Mapping[str, int] | None = None,
    max_dims: Mapping[str, int] | None = None,
    dynamic_shapes: Any = None,
    profile: str = DEFAULT,
    analysis: bool = False,
    force: bool = False,
) -> Trainer:
    """Builds, proves and measures a trainer of `module`, writes its package into folder `out`, and returns it.

    - `module`: a torch.nn.Module, or what torch.export.export made. It is exported in the mode that it is in.
    - `example_inputs`: the tuple of tensors that module(...) takes. Their dimension 0 becomes free, called batch;
      `dynamic_shapes`, as of torch.export.export, where others are free
    - `loss`: a name as of `minbuild artifacts --loss`, a loss of torch.nn, or "none" where the module returns its loss.
      Targets are one more input, behind those of the module
    - `train`, `frozen`: parameters by names and patterns as of `minbuild artifacts`; all train by default
    - `optimizer`: a name as of `minbuild artifacts --optimizer`, or an optimizer of torch.optim, with its options and
      learning rate
    - `target`: as of `minbuild reduce`; this machine by default. The trainer returned runs where this machine is one
    - `outputs`, `components`: further values that steps return, by name, and optional components, such as "export"
    - `dims`: free dimensions to fix; `max_dims`: the largest that memory is planned for, and
      the most rounds of loops that inputs of one number give
    - `profile`, `analysis`, `force`: as of `minbuild reduce`

    What a user should see is a warning. Raises BadInput, Unsupported, ToolchainFailed and VerificationFailed."""
    chosen_loss, loss_options = loss_of(loss)
    chosen_optimizer, optimizer_options, learning_rate = optimizer_of(optimizer)
    if profile not in PROFILES:
        raise BadInput(
            f"profile {profile}: no such profile.{did_you_mean(profile, PROFILES)} "
            f"Choose from {', '.join(PROFILES)}."
        )
    model, notes = read_module(module, example_inputs, dynamic_shapes)
    source = source_of(model, Path(f"{type(module).__name__}.onnx"))
    recipe = Recipe(
        loss=chosen_loss,
        loss_options=loss_options,
        optimizer=chosen_optimizer,
        optimizer_options=optimizer_options,
        train=_names(train),
        frozen=_names(frozen),
        outputs=_names(outputs),
    )
    bounding = bounding_inputs(source.graph)
    rounds, largest = (
        {n: size for n, size in (max_dims or {}).items() if (n in bounding) == bounds}
        for bounds in (True, False)
    )
    made = make_artifacts(source, replace(recipe, largest=rounds))
    for note in (*notes, *made.notes):
        warnings.warn(note, stacklevel=2)
    with in_directory(made) as folder:
        request = Request(
            (folder,),
            out=Path(out),
            targets=_names(target),
            dims=dims or {},
            largest=largest,
            components=_names(components),
            analysis=analysis,
            build_options=in_profile(profile),
            force=force,
        )
        report = reduce_artifacts(request, _Silent())
    return Trainer(out, learning_rate=learning_rate, report=report)


def copy_parameters(trainer: Trainer, module: Any) -> tuple[str, ...]:
    """Copies the trained parameters into `module`, by name, and returns those names. Raises BadInput for one that the
    module lacks or has in another shape, and changes nothing then."""
    own = dict(module.named_parameters())
    found = {name: trainer.parameter(name) for name in trainer.trained}
    wrong = [
        f"'{name}' is {list(array.shape)} in the trainer, {_shape(own.get(name))} in the module"
        for name, array in found.items()
        if name not in own or tuple(own[name].shape) != array.shape
    ]
    if wrong:
        raise BadInput(
            f"{type(module).__name__}: {'; '.join(wrong)}. Give the module that the trainer was made of."
        )
    for name, array in found.items():
        tensor = own[name].data
        tensor.copy_(tensor.new_tensor(np.ascontiguousarray(array)))
    return tuple(found)


def _shape(parameter: Any) -> str:
    return "missing" if parameter is None else str(list(parameter.shape))


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


class _Silent:
    """A progress callback without output."""

    def stage(self, text: str) -> None:
        """Nothing is printed."""

    def detail(self, text: str) -> None:
        """Nothing is printed."""

    def note(self, text: str) -> None:
        """Nothing is printed."""
