"""Training artifacts from a forward model, in the shape of `onnxruntime.training.artifacts`.

generate_artifacts("model.onnx", requires_grad=["fc.weight"], loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.authoring import Recipe, Source, make_artifacts, read_source, source_of, write_artifacts
from minbuild.authoring.graph_builder import TypedGraphBuilder
from minbuild.authoring.recipe import LoraOptions, OwnLoss
from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.onnx.reader import read_model
from minbuild.ir import Graph
from minbuild.training.onnxblock.blocks import Block
from minbuild.training.onnxblock.context import operator_folder, writing


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
    dims: Mapping[str, int] | None = None,
    max_dims: Mapping[str, int] | None = None,
    lora: Sequence[str] | None = None,
    lora_rank: int = 8,
    lora_alpha: float | None = None,
    **exporter_options: Any,
) -> None:
    """Writes training, evaluation and optimizer model and checkpoint of `model`, an onnx.ModelProto or the path of one.

    Parameters in neither `requires_grad` nor `frozen_params` stay constants of the graphs; without `requires_grad`
    every parameter trains that is not frozen. Both take patterns, too. Without a `loss` the model's first output is
    the loss; a block, a function of a TypedGraphBuilder and the names of outputs, or an ONNX file's path is one of
    your own, and so is an `optimizer` that is a model or the path of one. `loss_input_names` are the outputs that the
    loss takes, `additional_output_names` further outputs of the training and evaluation models. Files go into
    `artifact_directory`, by default the current one, and their names begin with `prefix`; `ort_format` adds .ort
    models, `nominal_checkpoint` a checkpoint with names and shapes only. `custom_op_library` is a folder like those
    in `ops_folders`: <stem>.py beside <stem>.cc. `dims` fixes free dimensions of the inputs, by name, and `max_dims`
    bounds inputs of one whole number that say how often a loop runs. With `lora`, names of weights or patterns,
    adapters of rank `lora_rank` beside their layers train, scaled by `lora_alpha` / lora_rank, and of the parameters
    only those in `requires_grad`. Of `exporter_options`, torch's `do_constant_folding`
    and `training` are ignored with a warning, as ONNX Runtime ignored them up to 1.16. Raises, with all findings,
    BadInput and Unsupported that are RuntimeErrors as well, and WrongType, which is a TypeError too: programs written
    for ONNX Runtime catch those.
    """
    for name in exporter_options:
        if name not in _EXPORTER_OPTIONS:
            raise TypeError(f"generate_artifacts() got an unexpected keyword argument '{name}'")
        warnings.warn(f"{name} is an option of torch.onnx.export, and does nothing here", stacklevel=2)
    try:
        recipe = Recipe(
            loss=_loss(loss),
            loss_inputs=_names("loss_input_names", loss_input_names),
            optimizer=_optimizer(optimizer),
            train=_names("requires_grad", requires_grad),
            frozen=_names("frozen_params", frozen_params),
            outputs=_names("additional_output_names", additional_output_names),
            nominal=nominal_checkpoint,
            ort=ort_format,
            tolerant=True,
            sizes=_sizes("dims", dims),
            largest=_sizes("max_dims", max_dims),
            lora=LoraOptions(_names("lora", lora), lora_rank, lora_alpha),
        )
        folders = tuple(Path(folder) for folder in ops_folders)
        if custom_op_library is not None:
            folders = (*folders, operator_folder(custom_op_library))
        out = Path.cwd() if artifact_directory is None else Path(os.fsdecode(artifact_directory))
        made = make_artifacts(_source(model), recipe, folders, prefix)
        write_artifacts(made, out)
    except WrongType:
        raise
    except BadInput as error:
        raise Refused(in_python_terms(str(error))) from error
    except Unsupported as error:
        raise Lacking([in_python_terms(finding) for finding in error.findings]) from error
    for note in made.notes:
        warnings.warn(in_python_terms(note), stacklevel=2)


_EXPORTER_OPTIONS = ("do_constant_folding", "training")
_ARGUMENTS = {  # what command line options that messages name are called here
    "dim": "dims",
    "frozen": "frozen_params",
    "lora": "lora",
    "lora-rank": "lora_rank",
    "loss": "loss",
    "max-dim": "max_dims",
    "loss-input": "loss_input_names",
    "loss-output": "loss_input_names",
    "ops-dir": "ops_folders",
    "optimizer": "optimizer",
    "output": "additional_output_names",
    "train": "requires_grad",
}


def in_python_terms(text: str) -> str:
    """A message about options of the command line with this function's arguments in their place."""
    return re.sub(r"--([a-z][a-z-]*)", lambda found: _ARGUMENTS.get(found[1], found[0]), text)


class Refused(BadInput, RuntimeError):
    """Raised where ONNX Runtime raises for a request that cannot be carried out."""


class Lacking(Unsupported, RuntimeError):
    """Raised where ONNX Runtime raises for an operator or type that it lacks."""


class WrongType(Refused, TypeError):
    """An argument of a type that cannot be."""


def _names(argument: str, given: Sequence[str] | None) -> tuple[str, ...]:
    """A text is a sequence of letters to Python, which nobody means."""
    if isinstance(given, str):
        raise WrongType(
            f"{argument}: '{given}' is one text, but a list of names is expected. Put it in brackets."
        )
    return tuple(given or ())


def _sizes(argument: str, given: Mapping[str, int] | None) -> Mapping[str, int]:
    for name, size in (given or {}).items():
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or not 0 < size < 2**31:
            raise WrongType(
                f"{argument}: {name} is {size!r}, which is no size. Give a whole number from 1 to 2147483647."
            )
    return {name: int(size) for name, size in (given or {}).items()}


def _source(model: Any) -> Source:
    if isinstance(model, (str, os.PathLike)):
        return read_source(Path(model))
    if not hasattr(model, "opset_import"):
        raise WrongType(f"model {model!r}: no model. Give an onnx.ModelProto, or the path of an ONNX file.")
    return source_of(model, Path("model.onnx"))


def _loss(loss: LossType | Block | OwnLoss | str | None) -> str | OwnLoss:
    if isinstance(loss, LossType):
        return _LOSSES[loss]
    if loss is None or isinstance(loss, str):
        return loss or ""
    if not callable(loss):
        raise WrongType(f"loss {loss!r}: no loss. Give a LossType, a block, a function, or an ONNX file.")
    if not isinstance(loss, Block):
        return loss

    def build(compose: TypedGraphBuilder, *names: str) -> str | Sequence[str]:
        with writing(compose):
            return loss(*names)  # type: ignore[no-any-return]

    return build


def _optimizer(optimizer: OptimType | Any | str | None) -> str | Graph:
    if isinstance(optimizer, OptimType):
        return optimizer.name.lower()
    if optimizer is None or isinstance(optimizer, str):
        return optimizer or ""
    if isinstance(getattr(optimizer, "graph", None), Graph):
        return optimizer.graph  # type: ignore[no-any-return]
    made = optimizer.to_model_proto() if hasattr(optimizer, "to_model_proto") else optimizer
    if not hasattr(made, "opset_import"):
        raise WrongType(
            f"optimizer {optimizer!r}: no optimizer. Give an OptimType, a block of onnxblock.optim, or a model."
        )
    return read_model(made, Path("optimizer_model.onnx"))
