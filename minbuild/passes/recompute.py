"""Cheap results are computed again rather than kept from the forward pass to the backward pass.

A clipped activation is read by the next layer and, much later, by that layer's gradient. What it was made of is kept for
the gradient of the clipping anyway, so clipping once more, right before it is needed, frees its bytes in between. The
same kernel runs on the same bits, so no number changes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from minbuild.model import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.storage import readers, root

SHORTEST_GAP = 8  # calls between two readers that make it worth while


def recompute_cheap(procedure: Procedure, registry: Registry) -> Procedure:
    """Adds a second call of each cheap operator whose input lives on and whose output has late readers."""
    read_by = readers(procedure)
    calls, values = list(procedure.calls), dict(procedure.values)
    before: dict[int, list[Call]] = defaultdict(list)
    for index, call in enumerate(procedure.calls):
        late = _late_readers(procedure, registry, index, read_by)
        if not late:
            continue
        result = call.outputs[0]
        again = f"{result} (again)"
        values[again] = replace(values[result], name=again)
        before[late[0]].append(replace(call, outputs=(again,)))
        for reader in late:
            inputs = tuple(again if name == result else name for name in calls[reader].inputs)
            calls[reader] = replace(calls[reader], inputs=inputs)
    ordered = [each for index, call in enumerate(calls) for each in (*before[index], call)]
    return replace(procedure, calls=tuple(ordered), values=values)


def _late_readers(
    procedure: Procedure, registry: Registry, index: int, read_by: dict[str, list[int]]
) -> list[int]:
    """The calls behind the widest gap between readers of call `index`, if a second call there pays; else none."""
    call = procedure.calls[index]
    result = call.outputs[0] if len(call.outputs) == 1 else ""
    if not registry.ops[call.op].cheap or not result or root(procedure.alias, result) != result:
        return []
    uses = sorted(set(read_by.get(result, ())))
    gaps = [after - now for now, after in zip(uses, uses[1:], strict=False)]
    if procedure.values[result].role is not Role.TEMPORARY or max(gaps, default=0) < SHORTEST_GAP:
        return []
    late = uses[gaps.index(max(gaps)) + 1 :]
    direct = all(i < len(procedure.calls) and result in procedure.calls[i].inputs for i in late)
    sources = [root(procedure.alias, name) for name in call.inputs if name]
    kept = all(
        procedure.values[s].role is not Role.TEMPORARY or max(read_by[s], default=0) >= late[0]
        for s in sources
    )
    return late if direct and kept else []
