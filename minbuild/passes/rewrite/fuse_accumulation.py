"""Gradients go into their accumulation buffers as soon as they exist.

The artifacts accumulate every gradient at the end of the graph, so that all of them are alive at once. Here the kernel
that makes a gradient writes or adds it to the buffer itself where it can; else an addition follows right behind it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain

from minbuild.ir import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.invariants import ACCUMULATOR


def fuse_gradient_accumulation(procedure: Procedure, registry: Registry) -> Procedure:
    """Without InPlaceAccumulatorV2."""
    effects = Effects(procedure, registry)
    gradients = {effects.owner(c.inputs[1]) for c in procedure.calls if c.op == ACCUMULATOR}
    if not gradients and not any(c.accumulate for c in procedure.calls):
        return procedure
    names = chain(procedure.outputs, chain.from_iterable(c.inputs for c in procedure.calls))
    readers = Counter(owner for n in names if n and (owner := effects.owner(n)) in gradients)
    made_by = {
        owner: (i, o)
        for i, c in enumerate(procedure.calls)
        for o, n in enumerate(c.outputs)
        if n and (owner := effects.owner(n)) in gradients
    }
    adds: dict[int, set[int]] = {}
    after: dict[int, list[Call]] = {}
    for call in procedure.calls:
        if call.op != ACCUMULATOR:
            continue
        buffer, gradient = call.inputs[0], effects.owner(call.inputs[1])
        maker = made_by.get(gradient)
        temporary = effects.role(gradient) is Role.TEMPORARY
        if maker and temporary and readers[gradient] == 1 and _can_add(procedure, registry, *maker):
            effects.share(gradient, buffer)
            adds.setdefault(maker[0], set()).add(maker[1])
        else:
            step = Call(
                "minbuild:AddToGradient",
                1,
                call.node,
                inputs=(call.inputs[1],),
                outputs=(buffer,),
                accumulate=frozenset({0}),
            )
            after.setdefault(maker[0] if maker else -1, []).append(step)
    calls, same = list(after.get(-1, [])), dict[frozenset[int], frozenset[int]]()
    for index, call in enumerate(procedure.calls):
        if call.op != ACCUMULATOR:
            added = frozenset(adds.get(index, ()))
            added = same.setdefault(added, added)  # one set for all calls
            calls.append(call if added == call.accumulate else replace(call, accumulate=added))
        calls += after.get(index, [])
    return replace(procedure, calls=tuple(calls), alias=dict(effects.aliases))


def _can_add(procedure: Procedure, registry: Registry, index: int, output: int) -> bool:
    """True if the kernel of the call at `index` can add to this output."""
    return output in registry.ops[procedure.calls[index].op].accumulates
