"""Operators that ONNX itself defines by other operators: the nodes they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from onnx import FunctionProto, NodeProto, TypeProto, helper

from minbuild.frontend.onnx.reader import read_nodes
from minbuild.frontend.onnx.subgraphs import renamed
from minbuild.frontend.onnx.writer import node_proto
from minbuild.ir import Node, TensorType


def function_nodes(node: Node, inputs: Sequence[TensorType | None]) -> tuple[Node, ...] | None:
    """The nodes `node` stands for, with its own input and output names; None where ONNX defines no function for it.

    `inputs` are the element types, which some functions depend on. Raises Unsupported where the function holds what a
    Graph cannot.
    """
    try:
        schema = onnx.defs.get_schema(node.op_type, node.version, node.domain)
    except onnx.defs.SchemaError:
        return None
    proto = _proto(node, schema)
    function = _function(schema, node.version, proto, inputs)
    if function is None:
        return None
    graph = helper.make_graph([proto], node.name, [], [])
    imports = {o.domain: o.version for o in function.opset_import}
    imports.setdefault("", onnx.defs.onnx_opset_version())  # functions of other domains leave it out
    opsets = [helper.make_opsetid(domain, number) for domain, number in imports.items()]
    model = helper.make_model(graph, functions=[function], opset_imports=opsets)
    inlined = onnx.inliner.inline_local_functions(model)
    kept = {*node.inputs, *node.outputs}
    prefix = next(name for name in node.outputs if name)  # names of nodes may come twice
    nodes = read_nodes(inlined, Path(node.name))
    return tuple(renamed(n, lambda x: x if x in kept else f"{prefix}/{x}", node.name) for n in nodes)


def is_function(node: Node) -> bool:
    """True if ONNX defines the operator by other operators, for some types at least."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, node.version, node.domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _function(
    schema: Any, version: int, proto: NodeProto, inputs: Sequence[TensorType | None]
) -> FunctionProto | None:
    if schema.has_function:
        return _newest(schema.function_opset_versions, version, schema.get_function_with_opset_version)
    if schema.has_context_dependent_function:
        types = [_type(t) for t in inputs]
        return _newest(
            schema.context_dependent_function_opset_versions,
            version,
            lambda v: schema.get_context_dependent_function_with_opset_version(
                v, proto.SerializeToString(), types
            ),
        )
    return None


def _newest(versions: Sequence[int], version: int, get) -> FunctionProto | None:  # type: ignore[no-untyped-def]
    """The function of the newest opset that is not newer than the model's, else of the oldest."""
    fitting = [v for v in versions if v <= version] or [min(versions)]
    data = get(max(fitting))
    return FunctionProto.FromString(data) if data else None


def _type(tensor: TensorType | None) -> bytes:
    if tensor is None:
        return bytes(TypeProto().SerializeToString())
    shape = tensor.shape
    dims = None if shape is None else [d if isinstance(d, int) else str(d) for d in shape]
    return bytes(helper.make_tensor_type_proto(int(tensor.element), dims).SerializeToString())


def _proto(node: Node, schema: Any) -> NodeProto:
    """The node as ONNX writes it, with the schema's defaults for attributes it leaves out."""
    proto = node_proto(node)
    for name, attribute in schema.attributes.items():
        if name not in node.attributes and attribute.default_value.type:
            proto.attribute.append(attribute.default_value)
    return proto
