"""Calls whose results nobody reads are dropped."""

from __future__ import annotations

from dataclasses import replace

from minbuild.ir import Procedure
from minbuild.ops import Registry
from minbuild.passes.analysis.aliases import has_effect, reads, root, writes


def drop_dead_code(procedure: Procedure, registry: Registry) -> Procedure:
    """Only calls that reach an output or change what persists, and only the outputs of them that are read."""
    needed = {root(procedure.alias, name) for name in procedure.outputs}
    kept = []
    for call in reversed(procedure.calls):
        effect = has_effect(call, procedure, registry)
        if not effect and not any(root(procedure.alias, name) in needed for name in writes(call)):
            continue
        outputs = tuple(
            name if name and (root(procedure.alias, name) in needed or _persists(procedure, name)) else ""
            for name in call.outputs
        )
        kept.append(replace(call, outputs=outputs))
        needed.update(root(procedure.alias, name) for name in reads(call))
    return replace(procedure, calls=tuple(reversed(kept)))


def _persists(procedure: Procedure, name: str) -> bool:
    return procedure.values[root(procedure.alias, name)].role.persists
