"""The graphs that blocks write into: one graph at a time, set up by `base`, `empty_base`, or whoever takes a block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from minbuild.authoring.graph_builder import TypedGraphBuilder
from minbuild.errors import BadInput
from minbuild.frontend.onnx.writer import empty_model
from minbuild.ops import registry
from minbuild.training.onnxblock.accessor import ModelAccessor

OPSET = 17  # of graphs that begin with nothing: the newest that ONNX Runtime 1.19.2's training kernels take
_folders: ContextVar[tuple[Path, ...]] = ContextVar("folders with operators of one's own", default=())
_current: ContextVar[ModelAccessor | None] = ContextVar("model that blocks write into", default=None)


def current_model() -> ModelAccessor | None:
    """The model being written, if there is one."""
    return _current.get()


def composer() -> ModelAccessor:
    """The model being written. Raises BadInput where there is none."""
    current = _current.get()
    if current is None:
        raise BadInput(
            "a block was called with no model to write into. Call it inside of `with onnxblock.base(model):`, or give "
            "it to generate_artifacts."
        )
    return current


@contextmanager
def writing(into: ModelAccessor | TypedGraphBuilder) -> Iterator[ModelAccessor]:
    """Blocks write into this model, or behind the graph of this builder."""
    if isinstance(into, ModelAccessor):
        accessor = into
    else:
        builder = into
        accessor = ModelAccessor(lambda: builder, Path(builder.start.source))
    token = _current.set(accessor)
    try:
        yield accessor
    finally:
        _current.reset(token)
    if accessor is not into:
        accessor.finish()


@contextmanager
def base(model: Any, model_path: str | None = None) -> Iterator[ModelAccessor]:
    """Blocks continue a copy of `model`, an onnx.ModelProto; `model_path` names it in messages and says where its
    external data is. Raises BadInput and Unsupported when a block is written."""
    path = Path(model_path or "model.onnx")
    with writing(ModelAccessor.of_model(model, path, registry(_folders.get()))) as current:
        yield current


@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Blocks begin a model of their own, such as an optimizer's."""
    nothing, known = empty_model(opset_version or OPSET), registry(_folders.get())
    with writing(ModelAccessor.of_model(nothing, Path("model.onnx"), known)) as current:
        yield current


@contextmanager
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> Iterator[Path]:
    """Graphs begun here may have the operators in a folder: <stem>.py beside <stem>.cc. Raises BadInput for a library
    of ONNX Runtime's."""
    folder = operator_folder(custom_op_library_path)
    token = _folders.set((*_folders.get(), folder))
    try:
        yield folder
    finally:
        _folders.reset(token)


def operator_folder(path: str | os.PathLike[str]) -> Path:
    """A folder with operators. Raises BadInput for anything else."""
    folder = Path(os.fsdecode(path))
    if not folder.is_dir():
        raise BadInput(
            f"custom_op_library {folder}: no folder. A library of ONNX Runtime's says nothing about gradients: give a "
            "folder with the operators, <stem>.py beside <stem>.cc."
        )
    return folder
