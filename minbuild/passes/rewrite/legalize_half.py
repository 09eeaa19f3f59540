"""Halves are stored, floats are computed with: operators that lack a kernel for halves work on float copies.

A result that was computed as float stays one for all who read it, through views and movements too: no value is rounded
to 16 bits between two operators that compute in float, as in ONNX Runtime. It is rounded where the graph itself says
so (a Cast, an output), and where it is kept (parameters, states)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from minbuild.errors import Unsupported
from minbuild.ir import Call, ElementType, Procedure, Role, TensorType, Value
from minbuild.ops import Registry
from minbuild.ops.core.definition import HALVES
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.instruction_selection import select_kernels
from minbuild.passes.rewrite.native_products import PRODUCT


@dataclass
class _Widening:
    """One procedure while it is rewritten."""

    values: dict[str, Value]
    calls: list[Call] = field(default_factory=list)
    copies: dict[str, str] = field(default_factory=dict)  # half -> its float copy, while it holds
    exact: set[str] = field(default_factory=set)  # halves whose float copy is what they were rounded from

    def input(self, name: str, node: str) -> str:
        value = self.values.get(name)
        if value is None or value.type.element not in HALVES:
            return name
        if name not in self.copies:
            self.copies[name] = wide = f"{name} as float"
            tensor = TensorType(ElementType.FLOAT, value.type.shape)
            if value.constant is not None:
                constant = value.constant.astype(tensor.element.dtype)
                self.values[wide] = Value(wide, tensor, Role.CONSTANT, constant)
            else:
                self.values[wide] = Value(wide, tensor)
                self.calls.append(_cast(node, name, wide, ElementType.FLOAT))
        return self.copies[name]

    def widen(self, call: Call) -> None:
        inputs = tuple(self.input(name, call.node) for name in call.inputs)
        outputs, narrow = [], []
        for name in call.outputs:
            value = self.values.get(name)
            if value is not None and value.type.element in HALVES:
                wide = f"{name} in float"
                self.values[wide] = Value(wide, TensorType(ElementType.FLOAT, value.type.shape))
                narrow.append(_cast(call.node, wide, name, value.type.element))
                outputs.append(wide)
                self.copies[name] = wide
                self.exact.add(name)
            else:
                outputs.append(name)
        self.calls += [replace(call, inputs=inputs, outputs=tuple(outputs)), *narrow]


def _cast(node: str, source: str, target: str, to: ElementType) -> Call:
    return Call(":Cast", 13, node, inputs=(source,), outputs=(target,), attributes={"to": int(to)})


def legalize_half_precision(procedure: Procedure, registry: Registry) -> Procedure:
    """Floats for every call that has no kernel for its 16-bit numbers, or that reads what was computed as float. What
    changes its inputs stays as it is."""
    if not any(value.type.element in HALVES for value in procedure.values.values()):
        return procedure
    work = _Widening(dict(procedure.values))
    products = {name for call in procedure.calls if call.op == PRODUCT for name in call.outputs}
    for call in procedure.calls:
        names = (*call.inputs, *call.outputs)
        halves = any(n and procedure.values[n].type.element in HALVES for n in names)
        exact = work.exact.intersection(call.inputs)
        if call.op == PRODUCT:
            work.calls.append(call)
        elif call.op == ":Cast" and call.inputs[0] in products:
            work.calls.append(call)
            work.copies[call.outputs[0]] = call.inputs[0]
            work.exact.add(call.outputs[0])
        elif call.op == ":Cast" and exact:  # to the type that it names
            work.calls.append(replace(call, inputs=tuple(work.input(n, call.node) for n in call.inputs)))
        elif not halves or call.op == ":BitCast" or _updates_half(procedure, call, registry):
            work.calls.append(call)
        elif exact or not _served(procedure, call, registry):
            work.widen(call)
        else:
            work.calls.append(call)
    return replace(procedure, calls=tuple(work.calls), values=work.values)


def _updates_half(procedure: Procedure, call: Call, registry: Registry) -> bool:
    changed = Effects(procedure, registry).mutates(call)
    return any(procedure.values[owner].type.element in HALVES for owner in changed)


def _served(procedure: Procedure, call: Call, registry: Registry) -> bool:
    """True if there is a kernel for the call as it stands."""
    op = registry.ops[call.op]
    if op.is_view:
        return True
    try:
        select_kernels(replace(procedure, calls=(call,)), registry)
    except Unsupported:
        return False
    return True
