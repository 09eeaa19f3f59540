"""Costs of calls by a model of time: seconds and scratch memory at given sizes, in all rounds of loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minbuild.ir import Procedure, Role, Shape, TensorType
from minbuild.ir.dims import Dim, evaluate, product, symbols_in
from minbuild.ops import Registry
from minbuild.ops.movement.channel_slice import MOVE_CHANNELS
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.instruction_selection import Selection, select_kernels

# A model of time that only compares calls with each other: of a core that multiplies and reads memory at these rates.
MULTIPLICATIONS, BYTES = 25e9, 8e9  # per second
CALL = 1e-6  # seconds
CACHE, CACHED_BYTES = 1 << 20, 4 * BYTES  # bytes that stay in a cache, and their rate
ALIGNMENT = 16  # bytes of the arena's


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds and scratch memory of a call, and True if it multiplies matrices or the like."""

    seconds: float
    scratch: int
    multiplies: bool


def costs_of(procedure: Procedure, registry: Registry, sizes: Mapping[str, int]) -> tuple[Cost, ...]:
    """The cost of every call of `procedure` at these `sizes`; `registry` has the kernels."""
    found: dict[int, list[Selection]] = {id(call): [] for call in procedure.calls}
    for selection in select_kernels(procedure, registry):
        found[id(selection.call)].append(selection)
    costs = []
    inside = {index for loop in procedure.loops for index in loop}
    rounds = _size(procedure.samples, sizes) if inside else 1
    for index, call in enumerate(procedure.calls):
        seconds, scratch, multiplications = CALL, 0, 0
        for selection in found[id(call)]:
            tensors = [_tensor(arg, procedure) for arg in selection.args]
            all_bytes = [aligned_bytes(t, sizes) for t in tensors if t is not None]
            moved = 2 * min(all_bytes[:2]) if call.op == MOVE_CHANNELS else sum(all_bytes)
            count = registry.functions[selection.kernel.function].work
            work = _size(count(selection.params, [_shape(t) for t in tensors]), sizes) if count else 0
            seconds += moved / BYTES + work / MULTIPLICATIONS
            multiplications += work
            own = (
                arg
                for slot, arg in enumerate(selection.args)
                if isinstance(arg, TensorType) and selection.kernel.args[slot][0]
            )
            scratch = max(scratch, sum(aligned_bytes(arg, sizes) for arg in own))
        costs.append(Cost(seconds * (rounds if index in inside else 1), scratch, multiplications > 0))
    return tuple(costs)


def seconds_of(procedure: Procedure, registry: Registry, sizes: Mapping[str, int]) -> float:
    """Seconds of all calls of `procedure` at these `sizes` by the model of time, to compare with those of another order
    of the same calls; those in loops as often as they run. `registry` has the kernels."""
    return sum(cost.seconds for cost in costs_of(procedure, registry, sizes))


def cached_seconds_of(procedure: Procedure, registry: Registry, sizes: Mapping[str, int]) -> float:
    """`seconds_of` for `procedure`, `registry` and `sizes`, where what all rounds of a loop read and add to, such as
    weights and their gradients, comes from a cache from the second round on, if all of it stays there."""
    effects, rounds, saved = Effects(procedure, registry), _size(procedure.samples, sizes), 0.0
    for loop in procedure.loops:
        calls = [procedure.calls[index] for index in loop]
        made = {o for call in calls for o in effects.produces(call) if effects.role(o) is Role.TEMPORARY}
        whole = [
            aligned_bytes(procedure.values[name].type, sizes)
            for call in calls
            for name in (*call.inputs, *call.outputs)
            if name and not procedure.values[name].sample and effects.owner(name) not in made
        ]
        if sum(whole) <= CACHE:
            saved += (rounds - 1) * sum(whole) * (1 / BYTES - 1 / CACHED_BYTES)
    return seconds_of(procedure, registry, sizes) - saved


def _size(dim: Dim, sizes: Mapping[str, int]) -> int:
    return evaluate(dim, {name: sizes[name] for name in symbols_in(dim)})


def aligned_bytes(tensor: TensorType, sizes: Mapping[str, int]) -> int:
    """The bytes that a tensor takes in the arena at these `sizes`."""
    size = _size(product(tensor.shape or ()), sizes) * tensor.element.size
    return -(-size // ALIGNMENT) * ALIGNMENT


def _tensor(arg: str | TensorType, procedure: Procedure) -> TensorType | None:
    if isinstance(arg, TensorType):
        return arg
    return procedure.values[arg].type if arg else None


def _shape(tensor: TensorType | None) -> Shape:
    return (tensor.shape or ()) if tensor else ()
