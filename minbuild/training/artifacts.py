"""Training artifacts from a forward model, in the shape of `onnxruntime.training.artifacts`.

generate_artifacts("model.onnx", requires_grad=["fc.weight"], loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from minbuild.artifacts.onnx_reader import opset_in, read_model
from minbuild.authoring import Recipe, Source, make_artifacts, read_source, write_artifacts
from minbuild.authoring.composer import Composer
from minbuild.authoring.recipe import OwnLoss
from minbuild.errors import BadInput
from minbuild.model import Graph
from minbuild.training.onnxblock.blocks import Block
from minbuild.training.onnxblock.context import writing


class LossType(IntEnum):
    """Losses by the names that ONNX Runtime gives them, and more."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4
    HuberLoss = 5
    KLDivLoss = 6
    NLLLoss = 7


class OptimType(IntEnum):
    """Optimizers by the names that ONNX Runtime gives them, and more."""

    AdamW = 1
    SGD = 2
    Adam = 3
    Momentum = 4
    Adagrad = 5
    RMSProp = 6


_LOSSES = {
    LossType.MSELoss: "mse",
    LossType.CrossEntropyLoss: "cross-entropy",
    LossType.BCEWithLogitsLoss: "bce",
    LossType.L1Loss: "l1",
    LossType.HuberLoss: "huber",
    LossType.KLDivLoss: "kl",
    LossType.NLLLoss: "nll",
}


def generate_artifacts(
    model: Any,
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | Block | OwnLoss | str | None = None,
    optimizer: OptimType | Any | str | None = None,
    artifact_directory: str | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | os.PathLike[str] | None = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
    ops_folders: Sequence[str | os.PathLike[str]] = (),
) -> None:
    """Writes training, evaluation and optimizer model and checkpoint of `model`, an onnx.ModelProto or the path of one.

    Parameters in neither `requires_grad` nor `frozen_params` stay constants of the graphs; without `requires_grad`
    every parameter trains that is not frozen. Without a `loss` the model's first output is the loss; a block, a
    function of a Composer and the names of outputs, or an ONNX file's path is one of your own. Raises BadInput and
    Unsupported with all findings.
    """
    _refuse(ort_format, custom_op_library)
    recipe = Recipe(
        loss=_loss(loss),
        loss_inputs=tuple(loss_input_names or ()),
        optimizer=_optimizer(optimizer),
        train=tuple(requires_grad or ()),
        frozen=tuple(frozen_params or ()),
        outputs=tuple(additional_output_names or ()),
        nominal=nominal_checkpoint,
    )
    folders = tuple(Path(folder) for folder in ops_folders)
    write_artifacts(
        make_artifacts(_source(model), recipe, folders, prefix), Path(artifact_directory or os.getcwd())
    )


def _refuse(ort_format: bool, custom_op_library: object) -> None:
    if ort_format:
        raise BadInput(
            "ort_format: an .ort file holds the result of ONNX Runtime's own graph optimisations, which only ONNX "
            "Runtime can make: convert the .onnx files with its convert_onnx_models_to_ort. minbuild reduces both."
        )
    if custom_op_library is not None:
        raise BadInput(
            "custom_op_library: a library of ONNX Runtime's says nothing about gradients. Give folders with the "
            "operators in ops_folders: <stem>.py beside <stem>.cc."
        )


def _source(model: Any) -> Source:
    if isinstance(model, (str, os.PathLike)):
        return read_source(Path(model))
    path = Path("model.onnx")
    return Source(read_model(model, path), opset_in(model), path)


def _loss(loss: LossType | Block | OwnLoss | str | None) -> str | OwnLoss:
    if isinstance(loss, LossType):
        return _LOSSES[loss]
    if not isinstance(loss, Block):
        return loss or ""

    def build(compose: Composer, *names: str) -> str | Sequence[str]:
        with writing(compose):
            return loss(*names)  # type: ignore[no-any-return]

    return build


def _optimizer(optimizer: OptimType | Any | str | None) -> str | Graph:
    if isinstance(optimizer, OptimType):
        return optimizer.name.lower()
    if optimizer is None or isinstance(optimizer, str):
        return optimizer or ""
    if not isinstance(getattr(optimizer, "graph", None), Graph):
        raise BadInput(
            f"optimizer {optimizer!r}: no optimizer. Give an OptimType, a block of onnxblock.optim, or an ONNX file."
        )
    return optimizer.graph  # type: ignore[no-any-return]
