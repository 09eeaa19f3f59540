"""Elementwise results overwrite an input that nobody reads any more."""

from __future__ import annotations

from dataclasses import replace

from minbuild.ir import Call, Procedure, Role, Value
from minbuild.ir.dims import Dim, product
from minbuild.ops import Registry
from minbuild.passes.analysis.aliases import reads, root, writes
from minbuild.passes.analysis.liveness import last_uses


def run_in_place(procedure: Procedure, registry: Registry) -> Procedure:
    """Adds an alias from output to input where the operator allows it and the input's bytes die at the call."""
    alias = dict(procedure.alias)
    last = last_uses(procedure)
    for index, call in enumerate(procedure.calls):
        for output, source in registry.ops[call.op].in_place:
            if (
                _fits(procedure, alias, call, output, source)
                and last[root(alias, call.inputs[source])] == index
                and _ends_with_round(procedure, alias, call.inputs[source], index)
            ):
                target = root(alias, call.inputs[source])
                result = _owner(procedure, alias, call.outputs[output])
                last[target] = max(last[target], last[result])
                alias[result] = target
                break
    return _reuse_samples(replace(procedure, alias=alias))


def _owner(procedure: Procedure, alias: dict[str, str], name: str) -> str:
    """The owner of the bytes that an input may take over: of one sample, the whole value."""
    return alias[name] if procedure.values[name].sample else name


def _fits(procedure: Procedure, alias: dict[str, str], call: Call, output: int, source: int) -> bool:
    if source >= len(call.inputs) or not call.inputs[source] or output >= len(call.outputs):
        return False
    values = procedure.values
    if not call.outputs[output]:
        return False
    result, given = values[call.outputs[output]], values[call.inputs[source]]
    made = _owner(procedure, alias, result.name)
    if made in alias or values[made].role is not Role.TEMPORARY or result.sample != given.sample:
        return False
    owner = values[root(alias, given.name)]
    # The input may come twice (x * x); that is fine for kernels that read an element before they write it. It must
    # not be needed under another name by a different output of the same call.
    once = sum(root(alias, n) == owner.name for n in writes(call)) == 0
    seen = values[alias[given.name]] if given.sample else given
    whole = _count(owner) == _count(seen)
    return (
        _same(result, given)
        and once
        and whole
        and owner.role is Role.TEMPORARY
        and given.name in set(reads(call))
    )


def _count(value: Value) -> Dim:
    return product(value.type.shape or ())


def _same(one: Value, other: Value) -> bool:
    """True if both have as many elements of the same type."""
    return one.type.element == other.type.element and _count(one) == _count(other)


def _ends_with_round(procedure: Procedure, alias: dict[str, str], name: str, index: int) -> bool:
    """True if no later round of a loop around call `index` reads the same bytes."""
    loop = next((loop for loop in procedure.loops if index in loop), range(0))
    owner = root(alias, name)
    if procedure.values[name].sample:
        return owner not in _read_whole(procedure, alias, loop)
    return not loop or any(root(alias, n) == owner for i in loop for n in writes(procedure.calls[i]))


def _read_whole(procedure: Procedure, alias: dict[str, str], loop: range) -> set[str]:
    """The values that every round of a loop reads whole."""
    names = {n for i in loop for n in reads(procedure.calls[i])}
    return {root(alias, n) for n in names if not procedure.values[n].sample}


def _reuse_samples(procedure: Procedure) -> Procedure:
    """Outputs of a loop take the place of the values it consumes, sample by sample, where both are equally large and
    every round reads its sample of the one before it writes that of the other."""
    alias, values = dict(procedure.alias), procedure.values
    last = last_uses(procedure)
    first: dict[str, int] = {}
    for index, call in enumerate(procedure.calls):
        for name in writes(call):
            first.setdefault(root(alias, name), index)
    for loop in procedure.loops:
        used = {root(alias, n) for i in loop for n in reads(procedure.calls[i]) if values[n].sample}
        used -= _read_whole(procedure, alias, loop)
        for index in loop:
            for name in writes(procedure.calls[index]):
                made = root(alias, name)
                if not values[name].sample or first[made] != index:
                    continue
                for old in sorted(used):
                    ends = last[old] in loop and last[old] < index and first.get(old, index) < loop.start
                    if ends and values[old].role is Role.TEMPORARY and _same(values[old], values[made]):
                        alias[made] = old
                        last[old] = last[made]
                        break
    return replace(procedure, alias=alias)
