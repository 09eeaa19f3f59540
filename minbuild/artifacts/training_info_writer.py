"""Models with training information into ONNX files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto, TrainingInfoProto

from minbuild.artifacts.onnx_writer import model_proto, opsets_of
from minbuild.model import Graph, TensorType


@dataclass(frozen=True, slots=True)
class TrainingParts:
    """What a file with one TrainingInfoProto is made of. `types` are those of all outputs; `updates` and `resets` map
    variables to outputs of `algorithm` (or of `inference`) and of `initialization`."""

    inference: Graph
    algorithm: Graph
    initialization: Graph
    updates: Mapping[str, str]
    resets: Mapping[str, str]
    types: Mapping[str, TensorType]


def write_training_model(parts: TrainingParts, opset: int) -> bytes:
    """The ONNX file; `opset` is the version of ONNX's own operators. The same parts give the same bytes."""
    graphs = (parts.inference, parts.algorithm, parts.initialization)
    opsets = opsets_of([node for graph in graphs for node in graph.nodes], opset)
    model: ModelProto = model_proto(parts.inference, parts.types, opsets)
    info: TrainingInfoProto = model.training_info.add()
    info.algorithm.CopyFrom(model_proto(parts.algorithm, parts.types, opsets).graph)
    info.initialization.CopyFrom(model_proto(parts.initialization, parts.types, opsets).graph)
    bindings = (info.update_binding, parts.updates), (info.initialization_binding, parts.resets)
    for field, pairs in bindings:
        for variable, output in pairs.items():
            field.add(key=variable, value=output)
    return bytes(model.SerializeToString(deterministic=True))
