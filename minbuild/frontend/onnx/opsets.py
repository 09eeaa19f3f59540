"""Since which opset an operator is what it is."""

from __future__ import annotations

import onnx

# ONNX Runtime's own operators in ONNX's domain; all others are of version 1.
_RUNTIME_VERSIONS = {"MaxPoolGrad": 9, "AveragePoolGrad": 9}


def since_version(domain: str, name: str, opset: int) -> int:
    """The version of an operator that a model with `opset` of its domain runs. `domain` and `name` are the
    operator's."""
    try:
        return int(onnx.defs.get_schema(name, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return _RUNTIME_VERSIONS.get(name, 1) if not domain else 1


def next_version(domain: str, name: str, since: int) -> int | None:
    """The first opset at which another version takes over; None where there is none. `domain` and `name` are the
    operator's, `since` is its version."""
    later = [
        int(schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.name == name and schema.domain == domain and schema.since_version > since
    ]
    return min(later, default=None)
