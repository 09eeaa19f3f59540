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
        if not effects.outlives(call) and not effects.produces(call) & needed:
            continue
        outputs = tuple(
            name
            if name and ((owner := effects.owner(name)) in needed or effects.role(owner).persists)
            else ""
            for name in call.outputs
        )
        kept.append(call if outputs == call.outputs else replace(call, outputs=outputs))
        needed |= effects.reads(call)
    return replace(procedure, calls=tuple(reversed(kept)))
