"""New values of variables are written where the variables are.

An update binding assigns at the end of a step, when all new values have been computed from the old ones. Where the
old value is not read any more by the time the new one is made, what makes it writes to the variable itself.
"""

from __future__ import annotations

from dataclasses import replace

from minbuild.dims import product
from minbuild.model import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.storage import reads, root, writes

ASSIGN = "minbuild:Assign"


def update_in_place(procedure: Procedure, registry: Registry) -> Procedure:
    """Without those calls of Assign that an alias can stand for."""
    alias = dict(procedure.alias)
    calls = list(procedure.calls)
    for index, call in enumerate(procedure.calls):
        if call.op == ASSIGN and _can_stand_in(procedure, registry, alias, calls, index):
            alias[root(alias, call.inputs[1])] = call.inputs[0]
            calls[index] = replace(call, op="")
    return replace(procedure, calls=tuple(c for c in calls if c.op), alias=alias)


def _can_stand_in(
    procedure: Procedure, registry: Registry, alias: dict[str, str], calls: list[Call], index: int
) -> bool:
    """Whether the bytes of the new value may be those of the variable from the call on that makes it."""
    variable, value = (root(alias, n) for n in calls[index].inputs[:2])
    owner, target = procedure.values[value], procedure.values[variable]
    sizes = product(owner.type.shape or ()), product(target.type.shape or ())
    if (
        owner.role is not Role.TEMPORARY
        or owner.type.element is not target.type.element
        or sizes[0] != sizes[1]
    ):
        return False
    made = next(
        (i for i, c in enumerate(calls) if c.op and value in {root(alias, n) for n in writes(c)}), None
    )
    if made is None or not _one_by_one(registry, alias, calls[made], variable, value):
        return False
    later = (c for c in calls[made + 1 : index] if c.op)
    return all(root(alias, n) != variable for c in later for n in (*reads(c), *writes(c)))


def _one_by_one(registry: Registry, alias: dict[str, str], call: Call, variable: str, value: str) -> bool:
    """Whether a call that makes `value` may write it over `variable`: it does not read that, or only element by element
    as it writes."""
    if sum(root(alias, n) == value for n in writes(call)) != 1:
        return False
    outputs = [i for i, n in enumerate(call.outputs) if n and root(alias, n) == value]
    sources = {i for i, n in enumerate(call.inputs) if n and root(alias, n) == variable}
    allowed = {source for output, source in registry.ops[call.op].in_place if output == outputs[0]}
    return sources <= allowed
