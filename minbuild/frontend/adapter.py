"""Files of adapters (.onnx_adapter), as ONNX Runtime's LoraAdapter loads them: read into a Checkpoint, and written."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np

from minbuild import assets
from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.frontend.files import read_file
from minbuild.ir import Checkpoint, ElementType, Parameter
from minbuild.ir.flatbuffers.codec import Schema, decode, encode, parse_schema

VERSION = 1
SUFFIX = ".onnx_adapter"


@lru_cache(maxsize=1)
def schema() -> Schema:
    """The wire format of files of adapters."""
    return parse_schema((assets.root("schemas") / "ort_lora_adapter.fbs").read_text(encoding="utf-8"))


def write_adapter(checkpoint: Checkpoint) -> bytes:
    """The file with the trainable parameters of `checkpoint`. Raises BadInput where there are none with values."""
    tensors = []
    for parameter in checkpoint.parameters:
        if parameter.trainable and parameter.data is not None:
            array = np.ascontiguousarray(parameter.data, parameter.element.dtype.newbyteorder("<"))
            tensors.append(
                {
                    "name": parameter.name,
                    "dims": list(array.shape),
                    "element": int(parameter.element),
                    "data": array.reshape(-1).view(np.uint8),
                }
            )
    if not tensors:
        raise BadInput("adapter: the checkpoint has no trainable parameters with values to write.")
    return encode(
        schema(), {"format_version": VERSION, "adapter_version": 1, "model_version": 1, "tensors": tensors}
    )


def read_adapter(path: Path) -> Checkpoint:
    """The tensors of an .onnx_adapter file, as trainable parameters. Raises BadInput with all findings."""
    try:
        root = decode(schema(), read_file(path))
    except ValueError as error:
        raise BadInput(f"{path}: not a readable adapter: {error}. Save or copy it again.") from error
    if root["format_version"] != VERSION:
        raise BadInput(f"{path}: adapter format {root['format_version']} is not supported, only {VERSION}.")
    findings: list[str] = []
    parameters = []
    for tensor in root["tensors"] or ():
        name, shape = (
            tensor["name"] or "",
            tuple(int(d) for d in (() if tensor["dims"] is None else tensor["dims"])),
        )
        label = f"{path}: tensor '{name}'"
        if tensor["element"] not in ElementType._value2member_map_:
            findings.append(f"{label} has element type {tensor['element']}, which is not supported.")
            continue
        element = ElementType(tensor["element"])
        raw = np.empty(0, np.uint8) if tensor["data"] is None else tensor["data"]
        if any(d < 0 for d in shape) or raw.size != prod(shape) * element.dtype.itemsize:
            findings.append(f"{label} has {raw.size} bytes, which do not fit the shape {list(shape)}.")
            continue
        data = np.require(raw.view(element.dtype), requirements="A").reshape(shape)
        parameters.append(Parameter(name, element, shape, True, data))
    if len({p.name for p in parameters}) < len(parameters):
        findings.append(f"{path}: two tensors have one name.")
    if not parameters and not findings:
        findings.append(f"{path}: it holds no tensors.")
    if findings:
        raise BadInput("\n".join(findings))
    return Checkpoint(tuple(parameters))


def read_trained(path: Path) -> Checkpoint:
    """The parameters in a checkpoint, or in a file of adapters. Raises BadInput."""
    return read_adapter(path) if path.suffix == SUFFIX else read_checkpoint(path)


def overlaid(checkpoint: Checkpoint, trained: Checkpoint) -> Checkpoint:
    """The state that was trained: `trained`, or, where it has a part of the parameters only, `checkpoint` with those.
    Raises BadInput where a file of adapters has others than the checkpoint."""
    there = {p.name: p for p in checkpoint.parameters}
    new = {p.name: p for p in trained.parameters}
    if len(new) >= len(there):
        return trained
    if unknown := sorted(set(new) - set(there)):
        raise BadInput(f"adapter: the model has no {', '.join(unknown)}. Give the adapters of this model.")
    return replace(checkpoint, parameters=tuple(new.get(n, p) for n, p in there.items()))
