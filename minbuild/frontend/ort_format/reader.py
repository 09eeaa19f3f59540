"""Files in ONNX Runtime's own format (`.ort`) into Graphs: by way of the ONNX model that they were made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from minbuild import assets
from minbuild.errors import BadInput
from minbuild.frontend.onnx.reader import read_model
from minbuild.ir import Graph
from minbuild.ir.flatbuffers.codec import Schema, decode, parse_schema
from minbuild.ir.mapped import FileBytes

IDENTIFIER = b"ORTM"
VERSIONS = ("5", "6")  # since ONNX Runtime 1.13


@lru_cache(maxsize=1)
def schema() -> Schema:
    """The format of `.ort` files."""
    return parse_schema((assets.root("schemas") / "ort.fbs").read_text(encoding="utf-8"))


def is_ort(data: FileBytes) -> bool:
    """True if these are the bytes of such a file."""
    return data[4:8] == IDENTIFIER


def read_ort_graph(data: FileBytes, path: Path) -> Graph:
    """The graph in `data`, the bytes of `path`. Raises BadInput for damage and Unsupported for what a Graph
    cannot hold, each with all findings."""
    try:
        session = decode(schema(), data)
    except ValueError as error:
        raise BadInput(f"{path}: not a readable .ort file: {error}. Convert or copy it again.") from error
    if session["version"] not in VERSIONS:
        raise BadInput(
            f"{path}: its format version is {session['version']!r}; versions {' and '.join(VERSIONS)} can be "
            "read. Convert the model with ONNX Runtime 1.13 or newer, or give the .onnx file."
        )
    if session["model"] is None or session["model"]["graph"] is None:
        raise BadInput(f"{path}: holds no model. Convert or copy it again.")
    return read_model(_model(session["model"], path), path)


def _model(model: Mapping[str, Any], path: Path) -> ModelProto:
    proto = ModelProto(ir_version=min(model["ir_version"], onnx.IR_VERSION))
    for entry in model["opsets"] or ():
        proto.opset_import.add(domain=entry["domain"] or "", version=entry["version"])
    _fill_graph(proto.graph, model["graph"], path)
    return proto


def _fill_graph(proto: GraphProto, graph: Mapping[str, Any], path: Path) -> None:
    types = {v["name"]: v for v in graph["values"] or ()}
    stored = [_tensor(t) for t in graph["initializers"] or ()]
    proto.initializer.extend(stored)
    proto.input.extend(_value(name, types.get(name)) for name in graph["inputs"] or ())
    proto.output.extend(_value(name, types.get(name)) for name in graph["outputs"] or ())
    known = {t.name for t in stored} | {i.name for i in proto.input}
    nodes = [_node(n, path) for n in sorted(graph["nodes"] or (), key=lambda n: n["index"])]
    proto.node.extend(_in_order(nodes, known))


def _in_order(nodes: Iterable[NodeProto], known: set[str]) -> Iterable[NodeProto]:
    """Nodes stand in the file by number; each must come behind those it reads from. What reads from nowhere stays at
    the end, for the reader to complain about."""
    waiting = list(nodes)
    while waiting:
        ready = []
        for node in waiting:
            if all(not name or name in known for name in node.input):
                ready.append(node)
                known.update(node.output)
        if not ready:
            yield from waiting
            return
        yield from ready
        done = {id(node) for node in ready}
        waiting = [node for node in waiting if id(node) not in done]


def _node(node: Mapping[str, Any], path: Path) -> NodeProto:
    if node["type"] != 0:
        raise BadInput(
            f"{path}: node '{node['name']}' ({node['op_type']}) was fused for one machine. "
            "Convert the model with optimisation off, or give the .onnx file."
        )
    proto = NodeProto(name=node["name"] or "", op_type=node["op_type"] or "", domain=node["domain"] or "")
    proto.input.extend(node["inputs"] or ())
    proto.output.extend(node["outputs"] or ())
    proto.attribute.extend(_attribute(a, path) for a in node["attributes"] or ())
    return proto


def _attribute(attribute: Mapping[str, Any], path: Path) -> AttributeProto:
    if attribute["type"] not in AttributeProto.AttributeType.values():
        raise BadInput(
            f"{path}: attribute '{attribute['name']}' has the type {attribute['type']}, which does not exist. "
            "Convert or copy the file again."
        )
    proto = AttributeProto(name=attribute["name"] or "", type=attribute["type"])
    proto.f, proto.i = attribute["f"], attribute["i"]
    proto.s = (attribute["s"] or "").encode()
    if attribute["t"] is not None:
        proto.t.CopyFrom(_tensor(attribute["t"]))
    if attribute["g"] is not None:
        _fill_graph(proto.g, attribute["g"], path)
    for name in ("floats", "ints"):
        values = attribute[name]
        getattr(proto, name).extend(() if values is None else values.tolist())
    proto.strings.extend(s.encode() for s in attribute["strings"] or ())
    proto.tensors.extend(_tensor(t) for t in attribute["tensors"] or ())
    for graph in attribute["graphs"] or ():
        _fill_graph(proto.graphs.add(), graph, path)
    return proto


def _tensor(tensor: Mapping[str, Any]) -> TensorProto:
    proto = TensorProto(name=tensor["name"] or "", data_type=tensor["element"])
    proto.dims.extend(() if tensor["dims"] is None else tensor["dims"].tolist())
    if tensor["strings"]:
        proto.string_data.extend(s.encode() for s in tensor["strings"])
    else:
        proto.raw_data = b"" if tensor["data"] is None else tensor["data"].tobytes()
    return proto


def _value(name: str, found: Mapping[str, Any] | None) -> ValueInfoProto:
    proto = ValueInfoProto(name=name)
    if found is not None and found["type"] is not None:
        _fill_type(proto.type, found["type"])
    return proto


def _fill_type(proto: TypeProto, info: Mapping[str, Any]) -> None:
    kind = info["kind"]
    if kind is None:
        return
    if info["kind_type"] == 1:
        proto.tensor_type.elem_type = kind["element"]
        if kind["shape"] is not None:
            proto.tensor_type.shape.SetInParent()
            for dim in kind["shape"]["dims"] or ():
                _fill_dim(proto.tensor_type.shape.dim.add(), dim["value"])
    elif info["kind_type"] == 2 and kind["element"] is not None:
        _fill_type(proto.sequence_type.elem_type, kind["element"])
    elif info["kind_type"] == 3:
        proto.map_type.key_type = kind["key"]


def _fill_dim(proto: Any, value: Mapping[str, Any] | None) -> None:
    if value is not None and value["kind"] == 1:
        proto.dim_value = value["number"]
    elif value is not None and value["kind"] == 2:
        proto.dim_param = value["name"] or ""
