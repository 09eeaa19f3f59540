"""Quantized activations in few bytes: masks of FakeQuant for gradients take a bit an element, and what gradients read
of its results is kept as codes, the quantised numbers.
"""

from __future__ import annotations

from dataclasses import replace

from minbuild.ir import Call, Procedure, Role, TensorType, Value
from minbuild.ops import Registry
from minbuild.ops.quantization.fake_quant import (
    FAKE_QUANT,
    FAKE_QUANT_GRAD,
    MASK_BITS,
    bits_shape,
    code_type,
)
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.liveness import only_read_as, readers


def pack_quantization_masks(procedure: Procedure, registry: Registry) -> Procedure:
    """Masks that only FakeQuantGrad reads have a bit for each element."""
    if not any(call.op == FAKE_QUANT for call in procedure.calls):
        return procedure
    values = dict(procedure.values)
    effects = Effects(procedure, registry)
    read_by = readers(procedure, effects)
    for call in procedure.calls:
        name = call.outputs[1] if call.op == FAKE_QUANT and len(call.outputs) > 1 else ""
        if name and only_read_as(procedure, effects, name, read_by[name], op=FAKE_QUANT_GRAD, number=1):
            bits = TensorType(MASK_BITS, bits_shape(values[name].type.shape or ()))
            values[name] = replace(values[name], type=bits)
    return replace(procedure, values=values)


def add_codes(procedure: Procedure, registry: Registry) -> Procedure:
    """Every FakeQuant has its codes as a further output, from which later passes may have its result made again."""
    if not any(call.op == FAKE_QUANT for call in procedure.calls):
        return procedure
    values, calls = dict(procedure.values), list(procedure.calls)
    effects = Effects(procedure, registry)
    for index, call in enumerate(calls):
        kind = code_type(call.attributes) if call.op == FAKE_QUANT and len(call.outputs) < 3 else None
        if kind is None or not call.outputs[0] or not _constant(procedure, call):
            continue
        name, source = call.outputs[0], effects.role(effects.owner(call.inputs[0]))
        if effects.owner(name) == name and effects.role(name) is source is Role.TEMPORARY:
            codes = f"{name}/codes"
            values[codes] = Value(codes, TensorType(kind, values[name].type.shape), Role.TEMPORARY)
            outputs = (*call.outputs, *("",) * (2 - len(call.outputs)), codes)
            calls[index] = replace(call, outputs=outputs)
    return replace(procedure, calls=tuple(calls), values=values)


def _constant(procedure: Procedure, call: Call) -> bool:
    """True if scale and zero point are known, and the zero point is a whole number."""
    scale, zero = (procedure.values[n].constant for n in call.inputs[1:3])
    return scale is not None and zero is not None and all(float(z).is_integer() for z in zero.ravel())
