"""Dead code elimination: drops calls whose results nothing reads."""

from __future__ import annotations

from dataclasses import replace

from minbuild.ir import Procedure
from minbuild.ops import Registry
from minbuild.passes.analysis.effects import Effects


def drop_dead_code(procedure: Procedure, registry: Registry) -> Procedure:
    """Only calls that reach an output or change what persists, and only the outputs of them that are read."""
    effects = Effects(procedure, registry)
    needed = set(effects.owners(procedure.outputs))
    kept = []
    for call in reversed(procedure.calls):
        made = effects.produces(call)
        used = not needed.isdisjoint(made)
        if not used and not effects.any_outlives(made | effects.mutates(call)):
            continue
        if len(made) > 1 or not used:
            outputs = tuple(
                name
                if name and ((owner := effects.owner(name)) in needed or effects.role(owner).persists)
                else ""
                for name in call.outputs
            )
            call = call if outputs == call.outputs else replace(call, outputs=outputs)  # noqa: PLW2901
        kept.append(call)
        needed |= effects.reads(call)
    return replace(procedure, calls=tuple(reversed(kept)))
