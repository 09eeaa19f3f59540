"""Checkpoints from and into models that blocks make."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minbuild.authoring.artifact_graphs import type_of
from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint
from minbuild.frontend.onnx.reader import array_of
from minbuild.frontend.onnx.writer import set_initializers
from minbuild.ir import Checkpoint, Parameter


def save_checkpoint(
    parameters: tuple[Sequence[Any], Sequence[Any]],
    path_to_checkpoint: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
) -> None:
    """Writes `parameters`, the trained and the frozen ones, each an onnx.TensorProto, to `path_to_checkpoint`.

    `nominal_checkpoint` leaves out the values. Raises BadInput when the file cannot be written."""
    found = []
    for trainable, tensors in zip((True, False), parameters, strict=True):
        for tensor in tensors:
            array = array_of(tensor)
            found.append(Parameter(tensor.name, type_of(array).element, array.shape, trainable, array))
    try:
        Path(path_to_checkpoint).write_bytes(
            write_checkpoint(Checkpoint(tuple(found), nominal=nominal_checkpoint))
        )
    except OSError as error:
        raise BadInput(f"{path_to_checkpoint}: cannot be written: {error.strerror}.") from error


def load_checkpoint_to_model(path_to_checkpoint: str | os.PathLike[str], model: Any) -> None:
    """Puts a checkpoint's parameters into the initializers of an onnx.ModelProto. Raises BadInput for those that the
    model does not have."""
    checkpoint = read_checkpoint(Path(path_to_checkpoint))
    missing = set_initializers(model, {p.name: p.data for p in checkpoint.parameters if p.data is not None})
    if missing:
        raise BadInput(f"{path_to_checkpoint}: {', '.join(missing)}: no such initializer in the model.")
