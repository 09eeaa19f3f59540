"""Invariants of procedures and relations across rewrites, which contracts of passes name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import prod

from minbuild.errors import Unsupported
from minbuild.ir import RESET_INPUT, Call, ElementType, Procedure, Role
from minbuild.ir.plan import LONGEST_COUNTED
from minbuild.ops import Registry
from minbuild.ops.core.definition import HALVES, UnsupportedUse
from minbuild.ops.quantization.fake_quant import FAKE_QUANT, FAKE_QUANT_GRAD
from minbuild.passes.analysis.aliases import present_inputs
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.instruction_selection import context_of, select_kernels
from minbuild.passes.analysis.liveness import only_read_as, readers
from minbuild.passes.analysis.symbolic_data import is_symbolic_data
from minbuild.passes.contracts import Invariant, Relation

ACCUMULATOR = "com.microsoft:InPlaceAccumulatorV2"
POOL, POOL_GRADIENT = ":MaxPool", ":MaxPoolGrad"
LONGEST_LOOP = LONGEST_COUNTED  # calls: the plan counts steps of a loop in a byte


def _undefined(procedure: Procedure, registry: Registry) -> Iterator[str]:
    names = [n for call in procedure.calls for n in (*call.inputs, *call.outputs)]
    for name in dict.fromkeys((*names, *procedure.inputs, *procedure.outputs, *procedure.alias)):
        if name and name not in procedure.values:
            yield f"'{name}' has no type"


def _read_early(procedure: Procedure, registry: Registry) -> Iterator[str]:
    effects = Effects(procedure, registry)
    written = {RESET_INPUT}  # the session itself knows whether gradients are reset
    for call in procedure.calls:
        for name in present_inputs(call):
            owner = procedure.values[effects.owner(name)]
            if owner.role is Role.TEMPORARY and owner.constant is None and owner.name not in written:
                yield f"node '{call.node}' ({call.op}) reads '{name}' before a call writes it"
        written |= effects.produces(call)


def _written_twice(procedure: Procedure, registry: Registry) -> Iterator[str]:
    written: set[str] = set()
    for call in procedure.calls:
        for i, name in enumerate(call.outputs):
            if name and i not in call.accumulate and procedure.values[name].role is Role.TEMPORARY:
                if name in written:
                    yield f"node '{call.node}' ({call.op}) writes '{name}' a second time"
                written.add(name)


def _cyclic(procedure: Procedure, registry: Registry) -> Iterator[str]:
    done: set[str] = set()
    for start in procedure.alias:
        chain = {start: None}
        name = start
        while name in procedure.alias and name not in done:
            name = procedure.alias[name]
            if name in chain:
                yield f"'{start}' is an alias of itself"
                break
            chain[name] = None
        done.update(chain)


def _bad_loops(procedure: Procedure, registry: Registry) -> Iterator[str]:
    end = 0
    for loop in procedure.loops:
        if loop.start < end or loop.stop > len(procedure.calls):
            yield f"the loop over calls {loop.start} to {loop.stop - 1} overlaps another one or the end"
        if len(loop) > LONGEST_LOOP and loop.start:
            yield f"the loop at call {loop.start} has {len(loop)} calls"
        end = loop.stop


def _views(procedure: Procedure, registry: Registry) -> Iterator[str]:
    for call in procedure.calls:
        if registry.ops[call.op].is_view:
            yield f"node '{call.node}' ({call.op}) is a view"


def _accumulators(procedure: Procedure, registry: Registry) -> Iterator[str]:
    for call in procedure.calls:
        if call.op == ACCUMULATOR:
            yield f"node '{call.node}' still accumulates '{call.inputs[1]}' by itself"


def _dead(procedure: Procedure, registry: Registry) -> Iterator[str]:
    effects = Effects(procedure, registry)
    for call in procedure.calls:
        if not effects.writes(call):
            yield f"node '{call.node}' ({call.op}) has no result"


def _symbolic_data(procedure: Procedure, registry: Registry) -> Iterator[str]:
    for call in procedure.calls:
        known = {n: c for n in call.inputs if n and (c := procedure.values[n].constant) is not None}
        free = {n for n, content in known.items() if is_symbolic_data(content)}
        lower = registry.ops[call.op].lower
        if not free or lower is None:
            continue
        try:
            kernel_calls = tuple(lower(context_of(call, procedure.values, known)))
        except UnsupportedUse:  # reported when kernels are selected for good
            continue
        for name in sorted(
            free.intersection(arg for k in kernel_calls for arg in k.args if isinstance(arg, str))
        ):
            yield f"node '{call.node}' ({call.op}) reads '{name}', {known[name].ravel().tolist()}, as data"


def _unserved_halves(procedure: Procedure, registry: Registry) -> Iterator[str]:
    effects = Effects(procedure, registry)

    def is_half(name: str) -> bool:
        return procedure.values[name].type.element in HALVES

    for call in procedure.calls:
        touched = any(is_half(n) for n in (*call.inputs, *call.outputs) if n)
        if not touched or registry.ops[call.op].is_view or any(map(is_half, effects.mutates(call))):
            continue
        try:
            select_kernels(replace(procedure, calls=(call,)), registry)
        except Unsupported as error:
            yield error.findings[0]


def _wide_indices(procedure: Procedure, registry: Registry) -> Iterator[str]:
    effects = Effects(procedure, registry)
    shared = effects.owners(procedure.outputs).union(
        *(
            effects.owners((c.inputs[0], *c.inputs[2:]) if c.op == POOL_GRADIENT else c.inputs)
            for c in procedure.calls
        )
    )
    for call in procedure.calls:
        name = call.outputs[1] if call.op == POOL and len(call.outputs) > 1 else ""
        if not name or prod(call.attributes["kernel_shape"]) > 256 or effects.owner(name) in shared:
            continue
        if name not in procedure.alias and procedure.values[name].type.element is not ElementType.UINT8:
            yield f"node '{call.node}' ({call.op}) writes '{name}' of {procedure.values[name].type.element.label}"


def _wide_masks(procedure: Procedure, registry: Registry) -> Iterator[str]:
    effects = Effects(procedure, registry)
    read_by = readers(procedure, effects)
    for call in procedure.calls:
        name = call.outputs[1] if call.op == FAKE_QUANT and len(call.outputs) > 1 else ""
        if not name or procedure.values[name].type.element is not ElementType.BOOL:
            continue
        if only_read_as(procedure, effects, name, read_by[name], op=FAKE_QUANT_GRAD, number=1):
            yield f"node '{call.node}' ({call.op}) writes a byte for each element of '{name}'"


def _samples_outside(procedure: Procedure, registry: Registry) -> Iterator[str]:
    inside = {index for loop in procedure.loops for index in loop}
    for index, call in enumerate(procedure.calls):
        for name in (*call.inputs, *call.outputs):
            if name and procedure.values[name].sample and index not in inside:
                yield f"node '{call.node}' ({call.op}) touches one sample, '{name}', outside of loops"


# ------------------------------------------------------------------------------------ before and after a rewrite


def _interface_changes(before: Procedure, after: Procedure) -> Iterator[str]:
    if (before.inputs, before.outputs) != (after.inputs, after.outputs):
        yield "its inputs or outputs are others"
    for name, value in before.values.items():
        fixed = value.role not in (Role.TEMPORARY, Role.CONSTANT) or name in before.outputs
        now = after.values.get(name)
        if fixed and (now is None or (now.role, now.type) != (value.role, value.type)):
            yield f"'{name}' was {value.role.name} {value.type} and is {now and (now.role.name, now.type)}"


def _key(call: Call) -> tuple[object, ...]:
    """All of a call but its attributes."""
    return call.op, call.version, call.node, call.inputs, call.outputs, call.accumulate


def _changed_calls(before: Procedure, after: Procedure) -> Iterator[str]:
    old, new = Counter(map(_key, before.calls)), Counter(map(_key, after.calls))
    yield from (f"lost: {key}" for key in old - new)
    yield from (f"new: {key}" for key in new - old)


def _new_calls(before: Procedure, after: Procedure) -> Iterator[str]:
    """Outputs that no call reads may be dropped."""
    old, new = (Counter((c.op, c.version, c.node, c.inputs) for c in p.calls) for p in (before, after))
    yield from (f"new: {key}" for key in new - old)


def _more_calls(before: Procedure, after: Procedure) -> Iterator[str]:
    if len(after.calls) > len(before.calls):
        yield f"{len(before.calls)} calls became {len(after.calls)}"


def _lost_or_foreign_calls(before: Procedure, after: Procedure) -> Iterator[str]:
    """Calls may be repeated under other names, also by an operator that computes the result from other inputs; none is
    lost, and none is of a node that had no call."""
    old, new = ({(c.op, c.node, c.outputs) for c in p.calls} for p in (before, after))
    yield from (f"lost: {key}" for key in sorted(old - new))
    nodes = {call.node for call in before.calls}
    yield from (f"foreign: node '{call.node}' ({call.op})" for call in after.calls if call.node not in nodes)


TYPED = Invariant("every name has a type", _undefined)
ACYCLIC_ALIASES = Invariant("no value is an alias of itself", _cyclic)
TOPOLOGICAL = Invariant("values are written before they are read", _read_early)
SINGLE_WRITER = Invariant("every temporary has one writer", _written_twice)
DISJOINT_LOOPS = Invariant("loops are disjoint and short", _bad_loops)
NO_VIEWS = Invariant("views are aliases", _views)
NO_ACCUMULATORS = Invariant("gradients are accumulated where they are made", _accumulators)
NO_DEAD_CALLS = Invariant("every call has a result", _dead)
NO_SYMBOLIC_DATA = Invariant("no kernel reads free dimensions as data", _symbolic_data)
HALVES_SERVED = Invariant("calls on 16-bit numbers have kernels for them", _unserved_halves)
NARROW_INDICES = Invariant("indices that only the gradient of pooling reads take a byte", _wide_indices)
MASKS_OF_BITS = Invariant(
    "masks that only the gradient of FakeQuant reads take a bit an element", _wide_masks
)
SAMPLES_IN_LOOPS = Invariant("single samples are touched in loops only", _samples_outside)
ALWAYS = (TYPED, ACYCLIC_ALIASES, TOPOLOGICAL, SINGLE_WRITER, DISJOINT_LOOPS)

SAME_INTERFACE = Relation("inputs, outputs and variables stay", _interface_changes)
SAME_CALLS = Relation("the same calls run", _changed_calls)
NO_NEW_CALLS = Relation("calls are only removed", _new_calls)
NO_MORE_CALLS = Relation("no more calls than before run", _more_calls)
CALLS_REPEATED = Relation("calls are only repeated", _lost_or_foreign_calls)
