"""Indices of max pooling shrink from eight bytes to one."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from minbuild.ir import ElementType, Procedure, TensorType
from minbuild.ops import Registry
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.liveness import only_read_as, readers

POOL, GRADIENT = ":MaxPool", ":MaxPoolGrad"


def narrow_pool_indices(procedure: Procedure, registry: Registry) -> Procedure:
    """Indices that only MaxPoolGrad reads become a byte, the place in the window, of windows up to 256."""
    if not any(call.op == POOL for call in procedure.calls):
        return procedure
    values = dict(procedure.values)
    effects = Effects(procedure, registry)
    read_by = readers(procedure, effects)
    for call in procedure.calls:
        name = call.outputs[1] if call.op == POOL and len(call.outputs) > 1 else ""
        if (
            name
            and prod(call.attributes["kernel_shape"]) <= 256
            and only_read_as(procedure, effects, name, read_by[name], op=GRADIENT, number=1)
        ):
            narrow = TensorType(ElementType.UINT8, values[name].type.shape)
            values[name] = replace(values[name], type=narrow)
    return replace(procedure, values=values)
