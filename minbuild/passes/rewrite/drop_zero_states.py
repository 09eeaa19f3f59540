"""Zeros that an operator reads where an input is absent need no bytes: the input is left out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from minbuild.ir import Call, Procedure
from minbuild.ir.mapped import parts_of
from minbuild.ir.pages import drop_pages
from minbuild.ir.pieces import raw_bytes
from minbuild.ops import Registry
from minbuild.passes.analysis.effects import Effects

_FILL = ":ConstantOfShape"


def drop_zero_states(procedure: Procedure, registry: Registry) -> Procedure:
    """Leaves out inputs that are known to be all zeros where `Op.zero_when_absent` has them, such as first states of
    recurrent layers: a constant as large as a batch, or the call that fills it."""
    if not any(registry.ops[call.op].zero_when_absent for call in procedure.calls):
        return procedure
    effects = Effects(procedure, registry)
    zeros = {name for name, value in procedure.values.items() if _is_zero(value.constant)}
    zeros |= {call.outputs[0] for call in procedure.calls if call.op == _FILL and _fills_zero(call)}
    if not zeros:
        return procedure
    zeros -= {name for call in procedure.calls if call.op != _FILL for name in effects.writes(call)}
    calls = tuple(
        _without(call, registry.ops[call.op].zero_when_absent, zeros, effects) for call in procedure.calls
    )
    return replace(procedure, calls=calls)


def _without(call: Call, places: Collection[int], zeros: Collection[str], effects: Effects) -> Call:
    if not places:
        return call
    inputs = tuple(
        "" if name and at in places and effects.owner(name) in zeros else name
        for at, name in enumerate(call.inputs)
    )
    return replace(call, inputs=inputs)


def _fills_zero(call: Call) -> bool:
    return _is_zero(np.asarray(call.attributes.get("value", np.zeros(1, np.float32))))


def _is_zero(array: np.ndarray | None) -> bool:
    """True if every bit is 0; a negative zero is another number."""
    if array is None or array.dtype == object:
        return False
    zero = not any(np.frombuffer(part, np.uint8).any() for part in parts_of(raw_bytes(array)))
    drop_pages(array)
    return zero
