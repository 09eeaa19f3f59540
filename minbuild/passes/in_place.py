"""Elementwise results overwrite an input that nobody reads any more."""

from __future__ import annotations

from dataclasses import replace

from minbuild.dims import product
from minbuild.model import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.storage import last_uses, reads, root, writes


def run_in_place(procedure: Procedure, registry: Registry) -> Procedure:
    """Adds an alias from output to input where the operator allows it and the input's bytes die at the call."""
    alias = dict(procedure.alias)
    last = last_uses(procedure)
    for index, call in enumerate(procedure.calls):
        for output, source in registry.ops[call.op].in_place:
            if (
                _fits(procedure, alias, call, output, source)
                and last[root(alias, call.inputs[source])] == index
            ):
                target = root(alias, call.inputs[source])
                result = call.outputs[output]
                last[target] = max(last[target], last[result])
                alias[result] = target
                break
    return replace(procedure, alias=alias)


def _fits(procedure: Procedure, alias: dict[str, str], call: Call, output: int, source: int) -> bool:
    if source >= len(call.inputs) or not call.inputs[source] or output >= len(call.outputs):
        return False
    result, given = call.outputs[output], call.inputs[source]
    if not result or result in alias:
        return False
    values = procedure.values
    owner = values[root(alias, given)]
    same = values[result].type.element == values[given].type.element and product(
        values[result].type.shape or ()
    ) == product(values[given].type.shape or ())
    # The input may come twice (x * x); that is fine for kernels that read an element before they write it. It must
    # not be needed under another name by a different output of the same call.
    once = sum(root(alias, n) == owner.name for n in writes(call)) == 0
    whole = product(owner.type.shape or ()) == product(values[given].type.shape or ())
    return same and once and whole and owner.role is Role.TEMPORARY and given in set(reads(call))
