"""Program -> Plan: every value gets its bytes, every procedure its arena layout, every step its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from minbuild.errors import BadInput
from minbuild.ir import (
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
from minbuild.ir.dims import round_up
from minbuild.ir.kernel_choice import EVERY_KERNEL, KernelChoice
from minbuild.ir.mapped import file_bytes, sha256_of
from minbuild.ir.pages import drop_pages
from minbuild.ir.pieces import LEAST, Pieces, raw_bytes
from minbuild.ops import Registry
from minbuild.ops.core.definition import STORAGE_TYPES, KernelFunction, View
from minbuild.passes.analysis.aliases import root
from minbuild.passes.analysis.instruction_selection import Selection, select_kernels
from minbuild.passes.analysis.representative_sizes import PLANNED_SIZES
from minbuild.planning.arena.buffers import accesses_of, buffers_of, checked, loops_of, scratch_name, size_of
from minbuild.planning.arena.layout import buffer_sizes, lower_bound, order_buffers, solution_of
from minbuild.planning.arena.validator import validate
from minbuild.planning.large_products import packs
from minbuild.planning.rollback import changed_before_refusal

_CACHE_LINE = 64  # bytes; regions begin at one, too, in libraries with packed products (runtime/layout.h)
_SMALL = 64  # bytes of a constant that is found by its bytes, not their digest
ARENA, PERSISTENT, CONSTANTS, INPUTS, FROZEN, EXTENT = range(6)


@dataclass
class _Builder:
    """The plan's tables while they grow; equal entries are shared."""

    program: Program
    registry: Registry
    threads: int  # that may work on a call
    search: int  # for a smaller arena than that of the best packing: times the usual work
    tensors: dict[PlanTensor, int] = field(default_factory=dict)
    kernels: dict[Kernel, int] = field(default_factory=dict)
    features: set[str] = field(default_factory=set)
    constants: Pieces = field(default_factory=Pieces)
    constant_at: dict[bytes | str, int] = field(default_factory=dict)
    persistent_at: dict[str, int] = field(default_factory=dict)
    frozen_at: dict[str, int] = field(default_factory=dict)
    draws_at: dict[str, int] = field(default_factory=dict)  # of nodes; "": of the session
    trainable_bytes: int = field(init=False)  # this and the next four: by lay_out_persistent
    persistent_bytes: int = field(init=False)
    learning_rate_at: int = field(init=False)
    step_at: int = field(init=False)
    rollback_bytes: int = field(init=False)
    buffers: int = 0
    ports: int = 0
    by_lines: bool = False  # tensors begin at lines of the cache: packed products read vectors as wide as one

    def lay_out_persistent(self) -> None:
        """Trained parameters, as many bytes again of gradients and each moment where stored, state, and counters."""
        offset = 0
        for value in self.program.parameters:
            if value.role is Role.PARAMETER:
                self.persistent_at[value.name] = offset
                offset += _bytes(value.type)
        whole = _CACHE_LINE if self.by_lines else 32  # vectors, for the optimizer
        self.trainable_bytes = -(-offset // whole) * whole
        offset = self.trainable_bytes * (self.first_moment + self.program.stored_moments)
        restored = changed_before_refusal(self.program, self.registry)
        parameters = enumerate(self.program.parameters)
        rollback_at = None
        for index, value in sorted(parameters, key=lambda p: p[1].name in restored):
            if value.name in restored and rollback_at is None:
                rollback_at = offset = -(-offset // 8) * 8
            # What is wider than the 4-byte alignment of checkpoint data cannot be read in place.
            if value.role is Role.BUFFER or (value.role is Role.FROZEN and value.type.element.size > 4):
                offset = -(-offset // 8) * 8
                self.persistent_at[value.name] = offset
                offset += _bytes(value.type)
            elif value.role is Role.FROZEN:
                self.frozen_at[value.name] = index
        values = (v for p in self.program.procedures for v in p.values.values())
        nodes = dict.fromkeys(v.of for v in values if v.role is Role.RNG_COUNTER and v.of)
        start = -(-offset // 8) * 8
        self.draws_at = {of: start + 8 * i for i, of in enumerate((*nodes, ""))}
        self.step_at = start + 8 * len(self.draws_at)
        self.learning_rate_at = self.step_at + 8
        self.persistent_bytes = self.learning_rate_at + 8
        self.rollback_bytes = self.persistent_bytes - (start if rollback_at is None else rollback_at)

    @property
    def first_moment(self) -> int:
        """The place of the first moment among the regions of what is trained: behind parameters and gradients."""
        return 1 if self.program.fused_updates else 2

    def tensor(self, region: int, at: int, tensor: TensorType, per_sample: int = 0) -> int:
        entry = PlanTensor(region, at, tensor.element, tensor.shape or (), per_sample)
        return self.tensors.setdefault(entry, len(self.tensors))

    def constant(self, value: Value) -> int:
        assert value.constant is not None
        data = raw_bytes(value.constant)
        key = bytes(data) if len(data) <= _SMALL else sha256_of(data)
        if key not in self.constant_at:
            self.constants.align(8)
            self.constant_at[key] = len(self.constants)
            # Of a large one a copy in C order comes into memory when it is written.
            self.constants.append(value.constant if len(data) >= LEAST else data)
        drop_pages(value.constant)
        return self.constant_at[key]

    def place(
        self,
        owner: Value,
        tensor: TensorType,
        buffers: Mapping[str, int],
        first_port: int,
        per_sample: int = 0,
    ) -> int:
        """The plan tensor for a view of type `tensor` on the bytes of `owner`, or one sample of them (`per_sample`)."""
        if owner.role is Role.TEMPORARY:
            return self.tensor(ARENA, buffers[owner.name], tensor, per_sample)
        if owner.role is Role.INPUT:
            return self.tensor(INPUTS, first_port + owner.index, tensor, per_sample)
        if owner.role is Role.CONSTANT:
            return self.tensor(CONSTANTS, self.constant(owner), tensor, per_sample)
        if owner.name in self.frozen_at:
            return self.tensor(FROZEN, self.frozen_at[owner.name], tensor, per_sample)
        return self.tensor(PERSISTENT, self.persistent(owner), tensor, per_sample)

    def persistent(self, value: Value) -> int:
        if value.role is Role.RNG_COUNTER:
            return self.draws_at[value.of]
        if value.role is Role.SCALAR:
            return (self.learning_rate_at, self.step_at)[value.index]
        if value.role is Role.GRADIENT:
            return self.trainable_bytes + self.persistent_at.get(value.of, 0)
        if value.role is Role.MOMENT:
            at = self.trainable_bytes * (self.first_moment + value.index)
            return at + self.persistent_at.get(value.of, 0)  # the optimizer's flat ones start at 0
        return self.persistent_at.get(value.name, 0)  # the optimizer's flat `params` start at 0


def build_plan(
    program: Program,
    registry: Registry,
    threads: int = 1,
    kernels: KernelChoice = EVERY_KERNEL,
    search: int = 1,
) -> Plan:
    """The plan of a program whose passes are done, with scratch memory for as many `threads`, of these
    `kernels`. A layout of the arena is searched for with `search` times the usual work.
    `program` is lowered and optimised, `registry` has the kernels. Raises Unsupported where no kernel serves."""
    builder = _Builder(program, registry, threads, search)
    selected = [_shared(select_kernels(p, registry, kernels), builder) for p in program.procedures]
    chosen = [selection for selections in selected for selection in selections]
    builder.by_lines = packs((s.kernel for s in chosen), (f for s in chosen for f in s.features))
    builder.lay_out_persistent()
    # Kernels in the order of the library's table.
    used = {id(selection.kernel): selection.kernel for selection in chosen}
    order = sorted(set(used.values()), key=lambda k: (k.stem, k.function, k.types))
    builder.kernels = {kernel: i for i, kernel in enumerate(order)}
    routines = tuple(_routine(builder, *each) for each in zip(program.procedures, selected, strict=True))
    parameters = tuple(
        PlanParameter(v.name, _device_role(builder, v), builder.place(v, v.type, {}, 0), v.index)
        for v in program.parameters
    )
    return Plan(
        tuple(order),
        features=tuple(sorted(builder.features)),
        tensors=tuple(builder.tensors),
        routines=routines,
        parameters=parameters,
        constants=file_bytes(builder.constants),
        symbols=program.symbols,
        trainable_bytes=builder.trainable_bytes,
        moments=program.moments,
        persistent_bytes=builder.persistent_bytes,
        learning_rate_at=builder.learning_rate_at,
        step_at=builder.step_at,
        rollback_bytes=builder.rollback_bytes,
        draw_bytes=8 * len(builder.draws_at) - 8,
        fingerprint=program.fingerprint,
        fused_updates=program.fused_updates,
        idle_moments=program.idle_moments,
    )


def _device_role(builder: _Builder, value: Value) -> Role:
    return Role.BUFFER if value.role is Role.FROZEN and value.name not in builder.frozen_at else value.role


def _bytes(tensor: TensorType) -> int:
    size = size_of(tensor)
    if not isinstance(size, int):
        raise BadInput(f"a parameter has a free dimension ({size} bytes); parameters must have fixed shapes.")
    return size


def _routine(builder: _Builder, procedure: Procedure, selections: Sequence[Selection]) -> Routine:
    loops = loops_of(procedure, selections)
    ordered = _laid_out(builder, procedure, selections, loops)
    numbers = {buffer.name: builder.buffers + i for i, buffer in enumerate(ordered)}
    first_port = builder.ports
    builder.buffers += len(ordered)
    builder.ports += len(procedure.inputs) + len(procedure.outputs)

    placed: dict[tuple[str, int], int] = {}  # tensors by name and slot, but for views

    def tensor(name: str, slot: int = 0) -> int:
        if isinstance(name, View):
            return new_tensor(name, slot)
        found = placed.get((name, slot))
        if found is None:
            found = placed[name, slot] = new_tensor(name, slot)
        return found

    def new_tensor(name: str, slot: int) -> int:
        owner, value = procedure.values[root(procedure.alias, name)], procedure.values[name]
        way = (2 if value.backward else 1) if value.sample else 0
        taken = name.type if isinstance(name, View) else value.type
        return builder.place(owner, _as_slot(taken, slot), numbers, first_port, way)

    steps = []
    rounds = {loop[-1]: len(loop) for loop in loops}
    for index, selection in enumerate(selections):
        args = []
        for slot, arg in enumerate(selection.args):
            if isinstance(arg, TensorType):
                scratch = selection.kernel.args[slot][0] != 0
                where = (ARENA, numbers[scratch_name(index, slot)]) if scratch else (EXTENT, 0)
                args.append(builder.tensor(*where, arg))
            else:
                args.append(tensor(arg, selection.kernel.args[slot][0]) if arg else -1)
        builder.features |= selection.features
        kernel, node = builder.kernels[selection.kernel], selection.call.node
        steps.append(
            Step(
                kernel,
                args=tuple(args),
                params=selection.params,
                accumulate=selection.accumulate,
                node=node,
                loop=rounds.get(index, 0),
            )
        )
    inputs = tuple((name, tensor(name)) for name in procedure.inputs)
    outputs = tuple((name, tensor(name)) for name in procedure.outputs)
    return Routine(
        procedure.name,
        steps=tuple(steps),
        buffers=ordered,
        inputs=inputs,
        outputs=outputs,
        samples=procedure.samples,
    )


def _shared(selections: Sequence[Selection], builder: _Builder) -> tuple[Selection, ...]:
    """The selections with scratch memory for every thread."""
    if builder.threads == 1:
        return tuple(selections)
    return tuple(
        _with_shares(s, builder.registry.functions[s.kernel.function], builder.threads) for s in selections
    )


def _with_shares(selection: Selection, function: KernelFunction, threads: int) -> Selection:
    if function.share is None:
        return selection
    args = list(selection.args)
    for slot, arg in enumerate(args):
        if isinstance(arg, TensorType) and selection.kernel.args[slot][0] != 0:
            first = size_of(arg)
            each = function.share(selection.params, first)
            if first != 0 and each != 0:  # each of whole cache lines, wherever the first ends
                args[slot] = TensorType(
                    ElementType.UINT8, (first + (each + 2 * _CACHE_LINE) * (threads - 1) + _CACHE_LINE,)
                )
    return replace(selection, args=tuple(args))


def _laid_out(
    builder: _Builder, procedure: Procedure, selections: Sequence[Selection], loops: Sequence[range]
) -> tuple[Buffer, ...]:
    """The procedure's buffers in placement order, checked."""
    assignments = [dict.fromkeys(builder.program.symbols, size) for size in PLANNED_SIZES]
    accesses = accesses_of(procedure, selections)
    buffers = buffers_of(procedure, selections, accesses, loops)
    if builder.by_lines:
        buffers = tuple(replace(b, bytes=round_up(b.bytes, _CACHE_LINE)) for b in buffers)
    ordered = order_buffers(buffers, assignments, builder.search)
    checked_loops = checked(procedure, loops)
    for number, assignment in enumerate(assignments):
        solution = solution_of(ordered, buffer_sizes(ordered, assignment))
        validate(
            procedure.name,
            ordered,
            offsets=solution.offsets,
            peak=solution.height,
            assignment=assignment,
            accesses=accesses,
            loops=checked_loops,
            again=number > 0,
        )
    return ordered


def _as_slot(tensor: TensorType, slot: int) -> TensorType:
    """Kernels that only move elements see any type as the unsigned one of its size."""
    stored = ElementType(slot) if slot in STORAGE_TYPES else tensor.element
    same = stored == tensor.element or stored.size != tensor.element.size
    return tensor if same else replace(tensor, element=stored)


def peak_bytes(plan: Plan, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Arena peak over all routines and its lower bound, in bytes, when the free dimensions have `sizes`."""
    peak = bound = 0
    for routine in plan.routines:
        each = buffer_sizes(routine.buffers, sizes)
        peak = max(peak, solution_of(routine.buffers, each).height)
        bound = max(bound, lower_bound(routine.buffers, each))
    return peak, bound
