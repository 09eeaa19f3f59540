"""Reshape, Flatten, Identity and their like become other names for the same bytes."""

from __future__ import annotations

from dataclasses import replace

from minbuild.ir import Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.analysis.aliases import root


def eliminate_views(procedure: Procedure, registry: Registry) -> Procedure:
    """Without calls of view operators. A view of an input that the procedure returns becomes a copy: the input's bytes
    are the caller's, and gone after the step."""
    alias = dict(procedure.alias)
    calls = []
    for call in procedure.calls:
        source, result = call.inputs[0] if call.inputs else "", call.outputs[0]
        if not registry.ops[call.op].is_view:
            calls.append(call)
        elif result in procedure.outputs and procedure.values[root(alias, source)].role is Role.INPUT:
            calls.append(replace(call, op="minbuild:Copy", inputs=(source,), attributes={}))
        else:
            alias[result] = source
    return replace(procedure, calls=tuple(calls), alias=alias)
