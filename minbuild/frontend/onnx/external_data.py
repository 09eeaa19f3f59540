"""The files that an ONNX file needs beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, TensorProto

from minbuild.frontend.files import read_file


def external_files(path: Path) -> tuple[Path, ...]:
    """The files in which tensors of ONNX file `path` are stored outside of it, those that are there; none for a file
    that is no ONNX file. Raises BadInput when it cannot be read."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(bytes(read_file(path, "Correct the path.")))
    except DecodeError:
        return ()
    graphs = [model.graph, *(g for t in model.training_info for g in (t.initialization, t.algorithm))]
    nodes = [node for function in model.functions for node in function.node]
    tensors = [t for graph in graphs for t in _tensors(graph)] + [t for node in nodes for t in _of_node(node)]
    places = {
        entry.value
        for tensor in tensors
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return tuple(path.parent / place for place in sorted(places) if (path.parent / place).is_file())


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from _of_node(node)


def _of_node(node: onnx.NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            yield attribute.t
        yield from attribute.tensors
        for graph in (*((attribute.g,) if attribute.type == AttributeProto.GRAPH else ()), *attribute.graphs):
            yield from _tensors(graph)
