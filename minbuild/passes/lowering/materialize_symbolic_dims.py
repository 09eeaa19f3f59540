"""Kernels that compute with free dimensions, such as a mean that divides by the batch size, read them as numbers.

Everywhere else sizes are expressions of the plan, which the device evaluates and no kernel sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from minbuild.ir import Call, Procedure, TensorType, Value
from minbuild.ops import Registry
from minbuild.ops.core.definition import INT64, UnsupportedUse
from minbuild.passes.analysis.instruction_selection import context_of
from minbuild.passes.analysis.symbolic_data import is_symbolic_data


def materialize_symbolic_dims(procedure: Procedure, registry: Registry) -> Procedure:
    """Puts a call that writes the numbers before the first one that reads them."""
    if not any(is_symbolic_data(value.constant) for value in procedure.values.values()):
        return procedure
    values, calls = dict(procedure.values), []
    made: dict[str, str] = {}
    for call in procedure.calls:
        for name in _read(procedure, registry, call):
            if name not in made:
                made[name] = numbers = f"{name} as numbers"
                values[numbers] = Value(numbers, TensorType(INT64, values[name].type.shape))
                calls.append(Call("minbuild:Sizes", 1, call.node, inputs=(name,), outputs=(numbers,)))
            call = replace(call, inputs=tuple(made[name] if n == name else n for n in call.inputs))
        calls.append(call)
    return replace(procedure, calls=tuple(calls), values=values) if made else procedure


def _read(procedure: Procedure, registry: Registry, call: Call) -> Iterator[str]:
    """The inputs that hold free dimensions and that a kernel of the call would read as data."""
    free = {
        n: procedure.values[n].constant
        for n in call.inputs
        if n and is_symbolic_data(procedure.values[n].constant)
    }
    lower = registry.ops[call.op].lower
    if not free or lower is None:
        return
    known = {n: c for n in call.inputs if n and (c := procedure.values[n].constant) is not None}
    try:
        kernel_calls = tuple(lower(context_of(call, procedure.values, known)))
    except UnsupportedUse:  # reported when kernels are selected for good
        return
    read = {arg for kernel_call in kernel_calls for arg in kernel_call.args if isinstance(arg, str)}
    yield from (name for name in free if name in read)
