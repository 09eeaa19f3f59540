"""Parameter metadata that PyTorch's exporter writes into its files."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import ModelProto, NodeProto

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_FOLDED = "pkg.onnxscript.optimizer.folded_from"
_SCOPES = "pkg.torch.onnx.name_scopes"
_PARAMETER = "PARAMETER"
_LAYERS = frozenset({"Attention", "Conv", "FusedMatMul", "Gemm", "MatMul"})  # their second input is a weight
_LINE = re.compile(r"^\S+: (PARAMETER|BUFFER) target='([^']+)'", re.MULTILINE)


@dataclass(frozen=True)
class ExporterMetadata:
    """By name: initializers that are no parameters of the module, such as buffers and constants computed of them;
    parameters of the module that no initializer is or was computed of; parameters and buffers of the module; for each
    initializer that was computed of parameters, the values it was computed of; initializers that layers read as their
    weights and that were computed of values that the file has no more, perhaps of lost parameters; and for each value
    that a node computes, the submodule that the node is of."""

    constants: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    folded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    joined: tuple[str, ...] = ()
    scopes: Mapping[str, str] = field(default_factory=dict)


def exporter_notes(model: ModelProto) -> ExporterMetadata:
    """Notes on the exporter's metadata; nothing where another exporter wrote it."""
    signature = next((p.value for p in model.graph.metadata_props if p.key == _SIGNATURE), "")
    kinds = {name: kind for kind, name in _LINE.findall(signature)}
    parameters = {n for n, kind in kinds.items() if kind == _PARAMETER}
    if not parameters:
        return ExporterMetadata()
    properties = {v.name: {p.key: p.value for p in v.metadata_props} for v in model.graph.value_info}
    constants: list[str] = []
    folded: dict[str, tuple[str, ...]] = {}
    found: set[str] = set()
    for tensor in model.graph.initializer:
        remarks = properties.get(tensor.name, {})
        sources = {tensor.name, *_names(remarks.get(_FOLDED, ""))}
        found |= sources
        described = _KIND in remarks or _FOLDED in remarks
        if described and remarks.get(_KIND) != _PARAMETER and not sources & parameters:
            constants.append(tensor.name)
        elif _FOLDED in remarks and tensor.name not in parameters:
            folded[tensor.name] = tuple(sorted(sources - {tensor.name}))
    read = {n for node in model.graph.node for n in node.input}  # what a Constant holds instead has no name
    lost = tuple(sorted(parameters - found - read))
    weights = {node.input[1] for node in model.graph.node if node.op_type in _LAYERS and len(node.input) > 1}
    joined = tuple(n for n in constants if n in weights and _FOLDED in properties[n]) if lost else ()
    return ExporterMetadata(
        tuple(n for n in constants if n not in joined),
        lost=lost,
        parameters=tuple(sorted(parameters)),
        buffers=tuple(sorted(set(kinds) - parameters)),
        folded=folded,
        joined=joined,
        scopes={
            n: scope for node in model.graph.node if (scope := _scope(node)) is not None for n in node.output
        },
    )


def _scope(node: NodeProto) -> str | None:
    """The path of the submodule that a node is of; None where the exporter did not record it."""
    remark = next((p.value for p in node.metadata_props if p.key == _SCOPES), "")
    modules = _names(remark)  # from the outermost to the node itself
    return modules[-2] if len(modules) > 1 else None


def _names(text: str) -> list[str]:
    """The names in the list that the metadata hold as text; none where it is no such list."""
    try:
        names = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return []
    return [n for n in names if isinstance(n, str)] if isinstance(names, list) else []
