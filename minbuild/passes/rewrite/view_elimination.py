"""View elimination: Reshape, Flatten, Identity and their like become aliases, other names for the same bytes."""

from __future__ import annotations

from dataclasses import replace

from minbuild.ir import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.ops.movement.copy import COPY
from minbuild.passes.analysis.effects import Effects


def eliminate_views(procedure: Procedure, registry: Registry) -> Procedure:
    """Without calls of view operators. A view of an input that the procedure returns becomes a copy: the input's bytes
    are the caller's, and gone after the step."""
    effects = Effects(procedure, registry)
    kept = (without_view(call, procedure, effects, registry) for call in procedure.calls)
    calls = tuple(call for call in kept if call is not None)
    return replace(procedure, calls=calls, alias=dict(effects.aliases))


def without_view(call: Call, procedure: Procedure, effects: Effects, registry: Registry) -> Call | None:
    """`call` itself, a copy in its place where `procedure` returns a view of an input, or None where it is a view by
    `registry`, whose result is an alias in `effects` now."""
    if not registry.ops[call.op].is_view:
        return call
    source, result = call.inputs[0] if call.inputs else "", call.outputs[0]
    if result in procedure.outputs and effects.role(effects.owner(source)) is Role.INPUT:
        return replace(call, op=COPY, inputs=(source,), attributes={})
    effects.share(result, effects.owner(source))  # the owner: chains of views are as long as models say
    return None
