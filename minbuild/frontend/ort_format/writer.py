"""Graphs into files of ONNX Runtime's own format (`.ort`), for its builds without ONNX.

What runs is the graph as it is: nothing is optimised on the way, and what a session of ONNX Runtime would work out of
an ONNX model (types, edges, where kernels find their types) is written down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import AttributeProto

from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.onnx.opsets import since_version
from minbuild.frontend.onnx.subgraphs import graphs_in
from minbuild.frontend.onnx.writer import IR_VERSION, LARGEST_FILE, bytes_of
from minbuild.frontend.ort_format.kernel_types import Places, kernel_types
from minbuild.frontend.ort_format.reader import schema
from minbuild.ir import ElementType, Graph, Node, TensorType
from minbuild.ir.flatbuffers.codec import encode

VERSION = "6"
_PROVIDER = "CPUExecutionProvider"
_TENSOR, _SEQUENCE = 1, 2  # members of the union Kind
_NUMBER, _NAME = 1, 2  # kinds of a dimension


def write_ort_graph(graph: Graph, types: Mapping[str, TensorType], opsets: Mapping[str, int]) -> bytes:
    """The `.ort` file of a graph. `types` are those of what its nodes compute; `opsets` are the versions of the
    domains it imports. The same graph gives the same bytes. `graph` must hold no graphs in its nodes. Raises
    Unsupported with every node that ONNX Runtime 1.19.2 does not know or that holds a graph, and BadInput beyond the
    format's 2 GiB."""
    if (size := bytes_of(graph)) > LARGEST_FILE:
        raise BadInput(
            f"{graph.source}: {size:,} bytes of constants do not fit into the .ort format, which ends at 2 GiB. Leave "
            "--ort out."
        )
    graph = with_stored_constants(graph)
    versions = [since_version(n.domain, n.op_type, opsets[n.domain]) for n in graph.nodes]
    known = {
        _title(n, v): kernel_types(n.domain, n.op_type, v) for n, v in zip(graph.nodes, versions, strict=True)
    }
    values = _types_of_values(graph, types)
    findings = [
        finding
        for node, version in zip(graph.nodes, versions, strict=True)
        for finding in _findings(graph.source, node, known[_title(node, version)], values)
    ]
    if findings:
        raise Unsupported(findings)
    session = {
        "version": VERSION,
        "model": {
            "ir_version": IR_VERSION,
            "opsets": [{"domain": d, "version": v} for d, v in sorted(opsets.items())],
            "producer": "minbuild",
            "graph": _graph(graph, values, versions),
        },
        "kernel_types": {"operators": [_operator(*item) for item in sorted(known.items())]},
    }
    return encode(schema(), session)


_CONSTANTS = {
    "value": None,
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def with_stored_constants(graph: Graph) -> Graph:
    """The graph with initializers in place of Constant nodes, which ONNX Runtime has no kernel for."""
    stored, nodes = dict(graph.initializers), []
    for node in graph.nodes:
        given = [n for n in node.attributes if n in _CONSTANTS] if node.op_type == "Constant" else []
        if given and not node.domain:
            stored[node.outputs[0]] = np.asarray(node.attributes[given[0]], _CONSTANTS[given[0]])
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), initializers=stored)


def _findings(
    source: str, node: Node, known: Places | None, values: Mapping[str, Mapping[str, Any] | None]
) -> Iterator[str]:
    where = f"{source}: node '{node.name}' ({node.title})"
    if any(graphs_in(node)):
        yield f"{where}: holds a graph, which minbuild does not write as .ort. Leave --ort out."
    if known is None:
        yield f"{where}: ONNX Runtime 1.19.2 has no such operator and could not load the file. Leave --ort out."
    for name in node.outputs:
        if name and values[name] is None:
            yield f"{where}: the type of '{name}' is not known, and .ort files need every type. Leave --ort out."


def _title(node: Node, version: int) -> str:
    return f"{node.domain}:{node.op_type}:{version}"


def _operator(title: str, types: Places | None) -> dict[str, Any]:
    kinds = [
        {"name": name, "arguments": [{"side": side, "index": index} for side, index in places]}
        for name, places in sorted((types or {}).items())
    ]
    return {"operator": title, "types": kinds}


def _graph(
    graph: Graph, values: Mapping[str, Mapping[str, Any] | None], versions: Sequence[int]
) -> dict[str, Any]:
    return {
        "initializers": [_tensor(np.asarray(array), name) for name, array in graph.initializers.items()],
        "values": [{"name": name, "type": kind} for name, kind in values.items()],
        "nodes": [_node(n, i, v) for i, (n, v) in enumerate(zip(graph.nodes, versions, strict=True))],
        "largest_index": len(graph.nodes),
        "edges": _edges(graph.nodes),
        "inputs": [*graph.inputs, *graph.sequences],
        "outputs": list(graph.outputs),
    }


def _types_of_values(graph: Graph, types: Mapping[str, TensorType]) -> dict[str, Mapping[str, Any] | None]:
    """By name, None where it is not known. The empty name stands for what a node leaves out, and has none."""
    told: dict[str, Mapping[str, Any] | None] = {n: _tensor_type(t) for n, t in graph.inputs.items()}
    told |= {n: _sequence_type(e) for n, e in graph.sequences.items()}
    told |= {n: _tensor_type(_type_of(np.asarray(a))) for n, a in graph.initializers.items()}
    for node in graph.nodes:
        # An optimizer's nodes hand sequences on.
        sequence = next((told[n] for n in node.inputs if n in graph.sequences), None)
        for name in node.outputs:
            told.setdefault(name, _tensor_type(types[name]) if name in types else sequence)
    if any("" in node.inputs for node in graph.nodes):
        told.setdefault("", None)
    return told


def _type_of(array: np.ndarray) -> TensorType:
    element = ElementType.of(array.dtype)
    assert element is not None, "readers refuse other types"
    return TensorType(element, array.shape)


def _tensor_type(tensor: TensorType) -> dict[str, Any]:
    shape = None
    if tensor.shape is not None:
        shape = {"dims": [{"value": _dimension(dim)} for dim in tensor.shape]}
    return {"kind_type": _TENSOR, "kind": {"element": int(tensor.element), "shape": shape}}


def _sequence_type(element: ElementType) -> dict[str, Any]:
    return {"kind_type": _SEQUENCE, "kind": {"element": _tensor_type(TensorType(element, None))}}


def _dimension(dim: object) -> dict[str, Any]:
    return {"kind": _NUMBER, "number": dim} if isinstance(dim, int) else {"kind": _NAME, "name": str(dim)}


def _tensor(array: np.ndarray, name: str = "") -> dict[str, Any]:
    element = _type_of(array).element
    data = np.ascontiguousarray(array, element.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    return {"name": name, "dims": list(array.shape), "element": int(element), "data": data}


def _node(node: Node, index: int, version: int) -> dict[str, Any]:
    return {
        "name": node.name,
        "domain": node.domain,
        "since_version": version,
        "index": index,
        "op_type": node.op_type,
        "provider": _PROVIDER,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
        "attributes": [_attribute(n, v) for n, v in sorted(node.attributes.items()) if v is not None],
        "input_counts": [1] * len(node.inputs),
        "implicit_inputs": [],
    }


def _attribute(name: str, value: Any) -> dict[str, Any]:
    attribute: dict[str, Any] = {"name": name}
    if isinstance(value, np.ndarray):
        return attribute | {"type": AttributeProto.TENSOR, "t": _tensor(value)}
    if isinstance(value, str):
        return attribute | {"type": AttributeProto.STRING, "s": value}
    if isinstance(value, (bool, int, np.integer)):
        return attribute | {"type": AttributeProto.INT, "i": int(value)}
    if isinstance(value, (float, np.floating)):
        return attribute | {"type": AttributeProto.FLOAT, "f": float(value)}
    items = list(value)
    if items and isinstance(items[0], np.ndarray):
        return attribute | {"type": AttributeProto.TENSORS, "tensors": [_tensor(t) for t in items]}
    if items and isinstance(items[0], str):
        return attribute | {"type": AttributeProto.STRINGS, "strings": items}
    if all(isinstance(item, (int, np.integer)) for item in items):
        return attribute | {"type": AttributeProto.INTS, "ints": [int(item) for item in items]}
    return attribute | {"type": AttributeProto.FLOATS, "floats": [float(item) for item in items]}


def _edges(nodes: tuple[Node, ...]) -> list[dict[str, Any]]:
    """By node: the node and output that each of its inputs comes from, and the inputs that its outputs go to."""
    makers = {name: (i, k) for i, node in enumerate(nodes) for k, name in enumerate(node.outputs) if name}
    inputs: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    outputs: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for reader, node in enumerate(nodes):
        for place, name in enumerate(node.inputs):
            if name in makers:
                maker, made = makers[name]
                inputs[reader].append((maker, made, place))
                outputs[maker].append((reader, made, place))
    return [
        {"node": i, "inputs": sorted(inputs[i]), "outputs": sorted(outputs[i])} for i in range(len(nodes))
    ]
