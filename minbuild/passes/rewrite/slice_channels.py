"""Loops over slices of channels where that lowers peak memory notably: of runs of calls that treat every channel by
itself, for any batch.

A normalization by statistics of the batch needs all samples at once, but of one channel only. What is made and read in
such a run then needs room for one slice of its channels. Convolutions with filters over all channels begin a run: they
read their input whole, and make the filters of a slice. The arithmetic on each channel is the same, by the same
kernels, so no number changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.errors import Unsupported
from minbuild.ir import Call, ElementType, Kernel, Procedure, Program, Role, TensorType, Value
from minbuild.ir.dims import symbols_in
from minbuild.ops import Registry
from minbuild.ops.movement.channel_slice import MOVE_CHANNELS
from minbuild.passes.analysis.call_costs import seconds_of
from minbuild.passes.analysis.channel_runs import (
    MOST_ROUNDS,
    ChannelRun,
    channel_slices_of,
    part_of,
    runs_of,
)
from minbuild.passes.analysis.channel_slices import SLICE, lies_together
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.instruction_selection import select_kernels
from minbuild.passes.analysis.representative_sizes import PLANNED_SIZES
from minbuild.passes.lowering.loop_call import LOOP
from minbuild.passes.rewrite.batch_tiling import LEAST_GAIN, lasting_bytes, live_bytes, live_peak, peaks_of

MOST_TIME = 1.1  # of the time without loops, by estimate
_NUMBERS = "numbers of slices"


def slice_channels(program: Program, registry: Registry) -> Program:
    """`program` with loops in the procedures that need most, as far as all together profit from it; `registry` has the
    operators."""
    runs = [_runs_without_loops(p, registry) for p in program.procedures]
    if not any(runs):
        return program
    plain = [live_bytes(p, registry) for p in program.procedures]
    lasting = lasting_bytes(program)
    given = zip(program.procedures, runs, plain, strict=True)
    made = [_with_loops(p, registry, r, b, lasting) if r else p for p, r, b in given]
    peaks = [max(each, default=0) for each in plain]
    most = max(peaks, default=0)
    goal = max(peaks_of(made, program.procedures, peaks, registry), default=0)
    if (most - goal) * LEAST_GAIN < most + lasting:
        return program
    pairs = zip(peaks, program.procedures, made, strict=True)
    return replace(program, procedures=tuple(loops if peak > goal else one for peak, one, loops in pairs))


def _runs_without_loops(procedure: Procedure, registry: Registry) -> tuple[ChannelRun, ...]:
    """The runs of a procedure; none of one that has loops."""
    if procedure.loops or any(call.op == LOOP for call in procedure.calls):
        return ()
    return runs_of(procedure, registry)


def _with_loops(
    procedure: Procedure, registry: Registry, runs: Sequence[ChannelRun], live: Sequence[int], lasting: int
) -> Procedure:
    """The procedure with the fewest rounds that make its temporaries nearly as small as any, of those that take little
    time. `runs` are its own, `live` the bytes alive at each call, `lasting` those that are always there."""
    inside = {index for run in runs for index in run.calls}
    least = max((b for index, b in enumerate(live) if index not in inside), default=0)
    most = max(live, default=0)
    if (most - least) * LEAST_GAIN < most + lasting:
        return procedure
    names = {s for v in procedure.values.values() for d in v.type.shape or () for s in symbols_in(d)}
    sizes = dict.fromkeys(names, PLANNED_SIZES[-1])
    try:
        limit = MOST_TIME * seconds_of(procedure, registry, sizes)
    except Unsupported:  # reported when kernels are selected for good
        return procedure
    found = [(procedure, most)]
    for rounds in (2**i for i in range(1, MOST_ROUNDS.bit_length())):
        parts = _parts(procedure, registry, runs, live, bound=least, rounds=rounds)
        needed = live_peak(_looped(procedure, registry, parts, rounds), registry)
        # Loops of what would need less all the same cost time for nothing.
        kept = tuple(part for part in parts if max(live[i] for i in part.calls) > needed)
        looped = _looped(procedure, registry, kept, rounds)
        if seconds_of(looped, registry, sizes) <= limit:
            found.append((looped, live_peak(looped, registry)))
    best = min(peak for _, peak in found)
    return next(each for each, peak in found if (peak - best) * LEAST_GAIN <= best)


def _parts(
    procedure: Procedure,
    registry: Registry,
    runs: Sequence[ChannelRun],
    live: Sequence[int],
    *,
    bound: int,
    rounds: int,
) -> tuple[ChannelRun, ...]:
    """The parts of `runs` that loops of `rounds` make smaller, in order, as far as what is left needs more: `bound`, or
    a run that cannot be smaller."""
    parts: list[ChannelRun] = []
    peaks = {run: max(live[i] for i in run.calls) for run in runs}
    for run in sorted(runs, key=lambda run: -peaks[run]):
        if peaks[run] <= bound:
            break
        part, saved = _best_part(procedure, registry, run, rounds)
        parts += [part] if saved else []
        bound = max(bound, peaks[run] - saved)
    return tuple(sorted(parts, key=lambda part: part.calls.start))


def _best_part(
    procedure: Procedure, registry: Registry, run: ChannelRun, rounds: int
) -> tuple[ChannelRun, int]:
    """The part of a run whose loop of `rounds` makes its temporaries smallest, and the bytes that are saved; 0 where
    none is."""
    best, saved, start = run, 0, run.calls.start
    if not run.divides(rounds):
        return best, saved
    alone = part_of(procedure, run.calls, registry)
    plain = live_peak(alone, registry)
    for length in range(2, len(run.calls) + 1):
        for first in range(len(run.calls) - length + 1):
            calls = range(first, first + length)
            looped = _looped(alone, registry, (ChannelRun(calls, run.channels),), rounds)
            if looped.loops and (less := plain - live_peak(looped, registry)) > saved:
                best, saved = ChannelRun(range(start + first, start + calls.stop), run.channels), less
    return best, saved


def _looped(procedure: Procedure, registry: Registry, runs: Sequence[ChannelRun], rounds: int) -> Procedure:
    """The procedure with loops of `rounds` in the place of all `runs`, in order, whose slices have the same kernels."""
    for run in reversed(runs):
        procedure = _Slicing(procedure, registry, run, rounds).run_in_loop()
    return procedure


@dataclass
class _Slicing:
    """One run while its calls become those of a loop."""

    procedure: Procedure
    registry: Registry
    run: ChannelRun
    rounds: int
    values: dict[str, Value] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)  # whole values -> their slices
    inner: frozenset[str] = frozenset()  # storage that only the run touches

    def __post_init__(self) -> None:
        self.effects = Effects(self.procedure, self.registry)
        self.values, self.alias = dict(self.procedure.values), dict(self.procedure.alias)
        at, calls = self.run.calls, self.procedure.calls
        outside = [call for i, call in enumerate(calls) if i not in at]
        kept = {owner for call in outside for owner in self.effects.touches(call)}
        kept |= self.effects.owners(self.procedure.outputs)
        made = {
            o for i in at for o in self.effects.produces(calls[i]) if self.effects.role(o) is Role.TEMPORARY
        }
        self.inner = frozenset(made - kept)

    def run_in_loop(self) -> Procedure:
        """The procedure with the loop; as it was, where slices have other kernels than the whole."""
        procedure, at = self.procedure, self.run.calls
        for index in at:
            call = procedure.calls[index]
            one = self.sliced(call)
            if not self.same_kernels(call, one):
                return procedure
        more = len(self.calls) - len(at)
        later = (range(loop.start + more, loop.stop + more) for loop in procedure.loops)
        return replace(
            procedure,
            calls=(*procedure.calls[: at.start], *self.calls, *procedure.calls[at.stop :]),
            values=self.values,
            alias=self.alias,
            loops=(range(at.start, at.stop + more), *later),
            samples=self.rounds,
        )

    def sliced(self, call: Call) -> Call:
        """The call on slices, added to the loop with the moves that it needs."""
        slices = channel_slices_of(call, self.procedure, self.registry, self.effects)
        assert slices is not None, call.node
        inputs = tuple(self.source(call, n, slices.inputs.get(i)) for i, n in enumerate(call.inputs))
        outputs = tuple(self.part(n, slices.outputs[i]) if n else n for i, n in enumerate(call.outputs))
        counts = {name: call.attributes[name] // self.rounds for name in slices.counts}
        made = replace(call, inputs=inputs, outputs=outputs, attributes={**call.attributes, **counts})
        self.calls.append(made)
        for whole, part in zip(call.outputs, outputs, strict=True):
            if part in self.moved.values():
                self.move(call, part, whole)
        return made

    def source(self, call: Call, name: str, axis: int | None) -> str:
        """The slice of an input, moved out of the whole where that has several ranges of bytes."""
        if not name or axis is None:
            return name
        there = name in self.moved
        part = self.part(name, axis)
        if part in self.moved.values() and not there:
            self.move(call, name, part)
        return part

    def part(self, name: str, axis: int) -> str:
        """The name by which a round sees its slice of `name` along `axis`."""
        value = self.procedure.values[name]
        shape = list(value.type.shape or ())
        shape[axis] //= self.rounds
        one = TensorType(value.type.element, tuple(shape))
        if self.effects.owner(name) in self.inner:
            self.values[name] = replace(value, type=one)
            return name
        if lies_together(value.type, axis):
            seen = f"{name}{SLICE}"
            self.values[seen] = replace(value, name=seen, type=one, constant=None, sample=True)
            self.alias[seen] = name
            return seen
        if name not in self.moved:
            self.moved[name] = f"{name}{SLICE[:-1]}, from call {self.run.calls.start})"
            self.values[self.moved[name]] = Value(self.moved[name], one)
        return self.moved[name]

    def move(self, call: Call, source: str, target: str) -> None:
        """Copies a slice to or from its place among all channels."""
        numbers, number = f"{_NUMBERS}, {self.rounds}", f"{_NUMBERS}, {self.rounds}{SLICE}"
        count = np.arange(self.rounds, dtype=np.int32)
        kind = ElementType.INT32
        self.values[numbers] = Value(numbers, TensorType(kind, count.shape), Role.CONSTANT, constant=count)
        self.values[number] = Value(number, TensorType(kind, (1,)), Role.CONSTANT, sample=True)
        self.alias[number] = numbers
        self.calls.append(Call(MOVE_CHANNELS, 1, call.node, (source, number), (target,)))

    def same_kernels(self, call: Call, one: Call) -> bool:
        """True if `one`, a slice of `call`, has the same kernels, and so the same bits."""
        after = replace(self.procedure, values=self.values, alias=self.alias)
        try:
            return self.kernels(self.procedure, call) == self.kernels(after, one)
        except Unsupported:
            return False

    def kernels(self, procedure: Procedure, call: Call) -> list[Kernel]:
        return [s.kernel for s in select_kernels(replace(procedure, calls=(call,)), self.registry)]
