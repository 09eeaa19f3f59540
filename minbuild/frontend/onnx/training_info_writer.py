"""Models with training information into ONNX files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto, TrainingInfoProto

from minbuild.frontend.onnx.writer import LARGEST_FILE, DataFile, bytes_of, model_proto, opsets_of
from minbuild.ir import Graph, TensorType
from minbuild.ir.pieces import FileContent


@dataclass(frozen=True, slots=True)
class TrainingParts:
    """The contents of a file with one TrainingInfoProto. `types` are those of all outputs; `updates` and `resets` map
    variables to outputs of `algorithm` (or of `inference`) and of `initialization`."""

    inference: Graph
    algorithm: Graph
    initialization: Graph
    updates: Mapping[str, str]
    resets: Mapping[str, str]
    types: Mapping[str, TensorType]


def write_training_model(
    parts: TrainingParts, opset: int, name: str, largest: int = LARGEST_FILE
) -> dict[str, FileContent]:
    """The ONNX file `name`; `opset` is the version of ONNX's own operators. Where constants take more than `largest`
    bytes, those of the inference graph stand in `<name>.data` beside it, and those of the algorithm as well where the
    rest is still too much. The same parts give the same bytes. `parts` are its graphs and bindings."""
    graphs = (parts.inference, parts.algorithm, parts.initialization)
    opsets = opsets_of([node for graph in graphs for node in graph.nodes], opset)
    beside, rest = DataFile(f"{name}.data"), sum(map(bytes_of, graphs))
    protos: list[ModelProto] = []
    for graph in graphs:
        outside = rest > largest
        protos.append(model_proto(beside.without_large(graph) if outside else graph, parts.types, opsets))
        if outside:
            beside.fill(protos[-1].graph, graph)
            rest -= bytes_of(graph)
    model = protos[0]
    info: TrainingInfoProto = model.training_info.add()
    info.algorithm.CopyFrom(protos[1].graph)
    info.initialization.CopyFrom(protos[2].graph)
    bindings = (info.update_binding, parts.updates), (info.initialization_binding, parts.resets)
    for field, pairs in bindings:
        for variable, output in pairs.items():
            field.add(key=variable, value=output)
    files: dict[str, FileContent] = {name: bytes(model.SerializeToString(deterministic=True))}
    return files | ({beside.name: beside.content()} if len(beside.data) else {})
