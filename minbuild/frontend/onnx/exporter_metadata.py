"""What PyTorch's exporter says of a module's parameters, in the metadata of the file it writes."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from onnx import ModelProto

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_FOLDED = "pkg.onnxscript.optimizer.folded_from"
_PARAMETER = "PARAMETER"
_LINE = re.compile(rf"^\S+: {_PARAMETER} target='([^']+)'", re.MULTILINE)


@dataclass(frozen=True)
class ExporterMetadata:
    """By name: initializers that are no parameters of the module, such as buffers and constants computed of them; and
    parameters of the module that no initializer is or was computed of."""

    constants: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def exporter_remarks(model: ModelProto) -> ExporterMetadata:
    """What the model says; nothing where another exporter wrote it."""
    signature = next((p.value for p in model.graph.metadata_props if p.key == _SIGNATURE), "")
    parameters = set(_LINE.findall(signature))
    if not parameters:
        return ExporterMetadata()
    said = {v.name: {p.key: p.value for p in v.metadata_props} for v in model.graph.value_info}
    constants: list[str] = []
    found: set[str] = set()
    for tensor in model.graph.initializer:
        remarks = said.get(tensor.name, {})
        sources = {tensor.name, *_names(remarks.get(_FOLDED, ""))}
        found |= sources
        told = _KIND in remarks or _FOLDED in remarks
        if told and remarks.get(_KIND) != _PARAMETER and not sources & parameters:
            constants.append(tensor.name)
    read = {n for node in model.graph.node for n in node.input}  # what a Constant holds instead has no name
    return ExporterMetadata(tuple(constants), tuple(sorted(parameters - found - read)))


def _names(text: str) -> list[str]:
    """The names in the list that the metadata hold as text; none where it is no such list."""
    try:
        names = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return []
    return [n for n in names if isinstance(n, str)] if isinstance(names, list) else []
