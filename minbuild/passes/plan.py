"""Program -> Plan: every value gets its bytes, every procedure its arena layout, every step its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.dims import Dim, product
from minbuild.errors import BadInput
from minbuild.model import (
    Buffer,
    ElementType,
    Kernel,
    Plan,
    PlanParameter,
    PlanTensor,
    Procedure,
    Program,
    Role,
    Routine,
    Step,
    TensorType,
    Value,
)
from minbuild.ops import Registry
from minbuild.ops.definition import STORED
from minbuild.passes.memory import buffer_sizes, lower_bound, order_buffers, skyline
from minbuild.passes.memory_check import check_layout
from minbuild.passes.select import Selection, select_kernels, touched
from minbuild.passes.storage import root

ARENA, PERSISTENT, CONSTANTS, INPUTS, FROZEN, EXTENT = range(6)
PLANNED_SIZES = (1, 8, 32)  # every free dimension at these sizes: what the arena layout is good for


@dataclass
class _Builder:
    """The plan's tables while they grow; equal entries are shared."""

    program: Program
    registry: Registry
    tensors: dict[PlanTensor, int] = field(default_factory=dict)
    kernels: dict[Kernel, int] = field(default_factory=dict)
    features: set[str] = field(default_factory=set)
    constants: bytearray = field(default_factory=bytearray)
    constant_at: dict[bytes, int] = field(default_factory=dict)
    persistent_at: dict[str, int] = field(default_factory=dict)
    frozen_at: dict[str, int] = field(default_factory=dict)
    draws_at: dict[str, int] = field(default_factory=dict)  # of nodes; "": of the session
    trainable_bytes: int = 0
    persistent_bytes: int = 0
    learning_rate_at: int = 0
    step_at: int = 0
    buffers: int = 0
    ports: int = 0

    def lay_out_persistent(self) -> None:
        """Trained parameters, as many bytes again of gradients and of each moment, state, and counters."""
        offset = 0
        for value in self.program.parameters:
            if value.role is Role.PARAMETER:
                self.persistent_at[value.name] = offset
                offset += _bytes(value.type)
        self.trainable_bytes = -(-offset // 32) * 32  # whole vectors, for the optimizer
        offset = self.trainable_bytes * (2 + self.program.moments)
        for index, value in enumerate(self.program.parameters):
            # What is wider than the 4-byte alignment of checkpoint data cannot be read in place.
            if value.role is Role.STATE or (value.role is Role.FROZEN and value.type.element.size > 4):
                offset = -(-offset // 8) * 8
                self.persistent_at[value.name] = offset
                offset += _bytes(value.type)
            elif value.role is Role.FROZEN:
                self.frozen_at[value.name] = index
        values = (v for p in self.program.procedures for v in p.values.values())
        nodes = dict.fromkeys(v.of for v in values if v.role is Role.DRAWS and v.of)
        start = -(-offset // 8) * 8
        self.draws_at = {of: start + 8 * i for i, of in enumerate((*nodes, ""))}
        self.step_at = start + 8 * len(self.draws_at)
        self.learning_rate_at = self.step_at + 8
        self.persistent_bytes = self.learning_rate_at + 8

    def tensor(self, region: int, at: int, tensor: TensorType) -> int:
        entry = PlanTensor(region, at, tensor.element, tensor.shape or ())
        return self.tensors.setdefault(entry, len(self.tensors))

    def constant(self, value: Value) -> int:
        assert value.constant is not None
        data = np.ascontiguousarray(value.constant).tobytes()
        if data not in self.constant_at:
            self.constants.extend(bytes(-len(self.constants) % 8))
            self.constant_at[data] = len(self.constants)
            self.constants.extend(data)
        return self.constant_at[data]

    def place(self, owner: Value, tensor: TensorType, buffers: Mapping[str, int], first_port: int) -> int:
        """The plan tensor for a view of type `tensor` on the bytes of `owner`."""
        if owner.role is Role.TEMPORARY:
            return self.tensor(ARENA, buffers[owner.name], tensor)
        if owner.role is Role.INPUT:
            return self.tensor(INPUTS, first_port + owner.index, tensor)
        if owner.role is Role.CONSTANT:
            return self.tensor(CONSTANTS, self.constant(owner), tensor)
        if owner.name in self.frozen_at:
            return self.tensor(FROZEN, self.frozen_at[owner.name], tensor)
        return self.tensor(PERSISTENT, self.persistent(owner), tensor)

    def persistent(self, value: Value) -> int:
        if value.role is Role.DRAWS:
            return self.draws_at[value.of]
        if value.role is Role.SCALAR:
            return (self.learning_rate_at, self.step_at)[value.index]
        if value.role is Role.GRADIENT:
            return self.trainable_bytes + self.persistent_at.get(value.of, 0)
        if value.role is Role.MOMENT:
            return self.trainable_bytes * (2 + value.index)
        return self.persistent_at.get(value.name, 0)  # the optimizer's flat `params` start at 0

    def kernel(self, kernel: Kernel) -> int:
        return self.kernels.setdefault(kernel, len(self.kernels))


def build_plan(program: Program, registry: Registry) -> Plan:
    """The plan of a program whose passes are done. Raises Unsupported where no kernel serves."""
    builder = _Builder(program, registry)
    builder.lay_out_persistent()
    routines = tuple(_routine(builder, p) for p in program.procedures)
    parameters = tuple(
        PlanParameter(v.name, _device_role(builder, v), builder.place(v, v.type, {}, 0))
        for v in program.parameters
    )
    # Kernels in the order of the library's table.
    order = sorted(builder.kernels, key=lambda k: (k.stem, k.function, k.types))
    renumber = {builder.kernels[k]: i for i, k in enumerate(order)}
    routines = tuple(_renumbered(r, renumber) for r in routines)
    return Plan(
        tuple(order),
        tuple(sorted(builder.features)),
        tuple(builder.tensors),
        routines,
        parameters,
        bytes(builder.constants),
        program.symbols,
        builder.trainable_bytes,
        program.moments,
        builder.persistent_bytes,
        builder.learning_rate_at,
        builder.step_at,
    )


def _device_role(builder: _Builder, value: Value) -> Role:
    return Role.STATE if value.role is Role.FROZEN and value.name not in builder.frozen_at else value.role


def _renumbered(routine: Routine, kernels: Mapping[int, int]) -> Routine:
    steps = tuple(Step(kernels[s.kernel], s.args, s.params, s.accumulate, s.node) for s in routine.steps)
    return Routine(routine.name, steps, routine.buffers, routine.inputs, routine.outputs)


def _size(tensor: TensorType) -> Dim:
    return product(tensor.shape or ()) * tensor.element.size


def _bytes(tensor: TensorType) -> int:
    size = _size(tensor)
    if not isinstance(size, int):
        raise BadInput(f"a parameter has a free dimension ({size} bytes); parameters must have fixed shapes.")
    return size


def _routine(builder: _Builder, procedure: Procedure) -> Routine:
    selections = select_kernels(procedure, builder.registry)
    buffers = _buffers(procedure, selections)
    assignments = [dict.fromkeys(builder.program.symbols, size) for size in PLANNED_SIZES]
    ordered = order_buffers(buffers, assignments)
    accesses = _accesses(procedure, selections)
    for assignment in assignments:
        offsets, peak = skyline(ordered, buffer_sizes(ordered, assignment))
        check_layout(procedure.name, ordered, offsets, peak, assignment, accesses)
    numbers = {buffer.name: builder.buffers + i for i, buffer in enumerate(ordered)}
    first_port = builder.ports
    builder.buffers += len(ordered)
    builder.ports += len(procedure.inputs) + len(procedure.outputs)

    def tensor(name: str, slot: int = 0) -> int:
        owner = procedure.values[root(procedure.alias, name)]
        return builder.place(owner, _as_slot(procedure.values[name].type, slot), numbers, first_port)

    steps = []
    for index, selection in enumerate(selections):
        args = []
        for slot, arg in enumerate(selection.args):
            if isinstance(arg, TensorType):
                scratch = selection.kernel.args[slot][0] != 0
                where = (ARENA, numbers[_scratch_name(index, slot)]) if scratch else (EXTENT, 0)
                args.append(builder.tensor(*where, arg))
            else:
                args.append(tensor(arg, selection.kernel.args[slot][0]) if arg else -1)
        builder.features |= selection.features
        kernel = builder.kernel(selection.kernel)
        steps.append(Step(kernel, tuple(args), selection.params, selection.accumulate, selection.call.node))
    inputs = tuple((name, tensor(name)) for name in procedure.inputs)
    outputs = tuple((name, tensor(name)) for name in procedure.outputs)
    return Routine(procedure.name, tuple(steps), ordered, inputs, outputs)


def _as_slot(tensor: TensorType, slot: int) -> TensorType:
    """Kernels that only move elements see any type as the unsigned one of its size."""
    wanted = ElementType(slot) if slot in STORED else tensor.element
    return replace(tensor, element=wanted) if wanted.size == tensor.element.size else tensor


def _scratch_name(step: int, slot: int) -> str:
    return f"scratch of step {step}, argument {slot}"


def _buffers(procedure: Procedure, selections: Sequence[Selection]) -> tuple[Buffer, ...]:
    """Every temporary with its lifetime; as large as its owner, of which all views are."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    scratch: list[Buffer] = []
    for index, selection in enumerate(selections):
        for name, _ in touched(selection, procedure):
            if procedure.values[name].role is Role.TEMPORARY:
                first.setdefault(name, index)
                last[name] = index
        for slot, arg in enumerate(selection.args):
            if isinstance(arg, TensorType) and selection.kernel.args[slot][0] != 0:
                scratch.append(Buffer(_scratch_name(index, slot), index, index, _size(arg)))
    for name in procedure.outputs:
        owner = root(procedure.alias, name)
        if owner in last:
            last[owner] = max(len(selections) - 1, 0)
    temporaries = [Buffer(n, first[n], last[n], _size(procedure.values[n].type)) for n in first]
    return tuple(temporaries + scratch)


def _accesses(procedure: Procedure, selections: Sequence[Selection]) -> tuple[tuple[str, ...], ...]:
    """The temporaries each step touches, for the independent check."""
    return tuple(
        tuple(n for n, _ in touched(s, procedure) if procedure.values[n].role is Role.TEMPORARY)
        for s in selections
    )


def peak_bytes(plan: Plan, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Arena peak over all routines and its lower bound, in bytes, when the free dimensions have `sizes`."""
    peak = bound = 0
    for routine in plan.routines:
        each = buffer_sizes(routine.buffers, sizes)
        peak = max(peak, skyline(routine.buffers, each)[1])
        bound = max(bound, lower_bound(routine.buffers, each))
    return peak, bound
