"""View elimination: Reshape, Flatten, Identity and their like become aliases, other names for the same bytes."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

from minbuild.ir import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.analysis.aliases import root


def eliminate_views(procedure: Procedure, registry: Registry) -> Procedure:
    """Without calls of view operators. A view of an input that the procedure returns becomes a copy: the input's bytes
    are the caller's, and gone after the step."""
    alias = dict(procedure.alias)
    kept = (without_view(call, procedure, alias, registry) for call in procedure.calls)
    return replace(procedure, calls=tuple(call for call in kept if call is not None), alias=alias)


def without_view(
    call: Call, procedure: Procedure, alias: MutableMapping[str, str], registry: Registry
) -> Call | None:
    """The call itself, a copy in its place, or None where `alias` now has its result."""
    if not registry.ops[call.op].is_view:
        return call
    source, result = call.inputs[0] if call.inputs else "", call.outputs[0]
    if result in procedure.outputs and procedure.values[root(alias, source)].role is Role.INPUT:
        return replace(call, op="minbuild:Copy", inputs=(source,), attributes={})
    alias[result] = alias.get(source, source)  # the owner: chains of views are as long as models say
    return None
