"""Batch tiling: loops over the batch one sample at a time where that lowers peak memory notably."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import is_
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
    looped = [_with_loops(p, registry) for p in program.procedures]
    if all(map(is_, looped, program.procedures)):
        return program
    plain = [live_peak(p, registry) for p in program.procedures]
    peaks = peaks_of(looped, program.procedures, plain, registry)
    most, goal = max(plain, default=0), max(peaks, default=0)
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
    kept = _needed(tiles, registry)
    return tiles.looped(kept) if kept else procedure


def _needed(tiles: Tiles, registry: Registry) -> list[range]:
    """The loops of `tiles` without which more would be live at the peak, each judged with the earlier ones that are
    needed and all later ones.

    A loop changes what is live at its own calls only, so that memory is counted twice in all, with all loops and with
    none, and not once for every loop."""
    if not tiles.loops:
        return []
    looped = tiles.looped(tiles.loops)
    live, plain = live_bytes(looped, registry), live_bytes(tiles.looped(()), registry)
    inside = {index for loop in looped.loops for index in loop}
    looping = [max(live[loop.start : loop.stop]) for loop in looped.loops]
    later = list(accumulate(reversed(looping), max, initial=0))[-2::-1]  # the most at loops behind each
    decided = max((each for index, each in enumerate(live) if index not in inside), default=0)
    least, kept = max(live, default=0), []
    for loop, most, behind in zip(tiles.loops, looping, later, strict=True):
        without = max(plain[loop.start : loop.stop])
        if (peak := max(decided, without, behind)) <= least:
            least, decided = peak, max(decided, without)
        else:
            kept.append(loop)
            decided = max(decided, most)
    return kept


def peaks_of(
    made: Sequence[Procedure], procedures: Sequence[Procedure], known: Sequence[int], registry: Registry
) -> list[int]:
    """Live bytes at the peak (`live_peak`) of what was `made` of each of the `procedures`; those of procedures that
    stayed the same are `known`. `registry` has the operators."""
    given = zip(made, procedures, known, strict=True)
    return [peak if one is before else live_peak(one, registry) for one, before, peak in given]


def lasting_bytes(program: Program) -> int:
    """Bytes of parameters, gradients and stored moments."""
    sizes = planned_bytes(program.parameters)
    trained = [v.name for v in program.parameters if v.role is Role.PARAMETER]
    return sum(sizes.values()) + sum(sizes[name] for name in trained) * (1 + program.stored_moments)


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
