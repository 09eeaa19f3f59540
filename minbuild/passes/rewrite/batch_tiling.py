"""Batch tiling: loops over the batch one sample at a time where that lowers peak memory notably."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from types import MappingProxyType

from minbuild.ir import Procedure, Program, Role
from minbuild.ops import Registry
from minbuild.passes.analysis.batch_tiles import Tiles, split_calls
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.liveness import live_ranges
from minbuild.passes.analysis.representative_sizes import planned_bytes
from minbuild.passes.lowering.loop_call import LOOP
from minbuild.passes.rewrite.in_place import run_in_place

LEAST_GAIN = 8  # a trainer that would need less by less than one part in so many stays without loops


def tile_batches(program: Program, registry: Registry) -> Program:
    """With loops in the procedures that need most, as far as all together profit from it."""
    plain = [live_peak(p, registry) for p in program.procedures]
    looped = [_with_loops(p, registry) for p in program.procedures]
    most, goal = max(plain, default=0), max((live_peak(p, registry) for p in looped), default=0)
    if (most - goal) * LEAST_GAIN < most + lasting_bytes(program):
        return program
    pairs = zip(plain, program.procedures, looped, strict=True)
    return replace(program, procedures=tuple(loops if peak > goal else one for peak, one, loops in pairs))


def _with_loops(procedure: Procedure, registry: Registry) -> Procedure:
    """The procedure with all loops that make its temporaries smaller; others cost time for nothing."""
    shapes = [procedure.values[name].type.shape for name in procedure.inputs]
    samples = next((shape[0] for shape in shapes if shape), 1)
    # Loops of one graph run equally often.
    if samples == 1 or procedure.loops or any(call.op == LOOP for call in procedure.calls):
        return procedure
    tiles = Tiles(replace(split_calls(procedure, registry), samples=samples), registry)
    kept = tuple(tiles.loops)
    least = live_peak(tiles.looped(kept), registry)
    for loop in tiles.loops:
        others = tuple(each for each in kept if each != loop)
        if (peak := live_peak(tiles.looped(others), registry)) <= least:
            kept, least = others, peak
    return tiles.looped(kept) if kept else procedure


def lasting_bytes(program: Program) -> int:
    """Bytes of parameters, gradients and moments."""
    sizes = planned_bytes(program.parameters)
    trained = [v.name for v in program.parameters if v.role is Role.PARAMETER]
    return sum(sizes.values()) + sum(sizes[name] for name in trained) * (1 + program.moments)


def live_peak(
    procedure: Procedure, registry: Registry, given: Mapping[str, int] = MappingProxyType({})
) -> int:
    """The most bytes of temporaries alive at one call of `procedure`, whose operators `registry` has, at the largest
    planned sizes, free dimensions in `given` at those."""
    return max(live_bytes(procedure, registry, given), default=0)


def live_bytes(
    procedure: Procedure, registry: Registry, given: Mapping[str, int] = MappingProxyType({})
) -> tuple[int, ...]:
    """The bytes of temporaries alive at each call of `procedure`; `registry` and `given` are as in `live_peak`."""
    procedure = run_in_place(procedure, registry)
    sizes = planned_bytes((v for v in procedure.values.values() if v.role is Role.TEMPORARY), given)
    effects = Effects(procedure, registry)
    accesses = [effects.touches(call) & sizes.keys() for call in procedure.calls]
    sliced = effects.owners(n for n, v in procedure.values.items() if v.sample)
    change: dict[int, int] = defaultdict(int)
    for name, (first, last) in live_ranges(accesses, sliced, procedure.loops).items():
        change[first] += sizes[name]
        change[last + 1] -= sizes[name]
    return tuple(accumulate(change[step] for step in range(len(procedure.calls))))
