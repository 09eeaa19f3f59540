"""Whether nodes have the inputs and attributes that ONNX says their operators need."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from minbuild.ir import Node

_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single


def wrong_signature(node: Node) -> Iterator[str]:
    """What the node lacks, or has too much of, each as the end of a sentence that begins with the node. Nothing for
    operators that ONNX does not define."""
    try:
        schema = onnx.defs.get_schema(node.op_type, node.version, node.domain)
    except onnx.defs.SchemaError:
        return
    count = max((i + 1 for i, name in enumerate(node.inputs) if name), default=0)
    if len(node.inputs) > schema.max_input:  # whatever is absent among them
        count = len(node.inputs)
    if not schema.min_input <= count <= schema.max_input:
        most = f" to {schema.max_input}" if schema.max_input != schema.min_input else ""
        yield f"has {count} inputs; the operator takes {schema.min_input}{most}"
    for formal, name in zip(schema.inputs, node.inputs[:count], strict=False):
        if formal.option == _SINGLE and not name:
            yield f"leaves out input '{formal.name}', which the operator needs"
    for attribute in schema.attributes.values():
        if attribute.required and attribute.name not in node.attributes:
            yield f"has no attribute '{attribute.name}', which the operator needs"
    if node.title == "Constant" and not node.attributes:
        yield "has no attribute with its value"
