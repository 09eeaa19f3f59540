"""Recomputation for ranges: what dynamic quantization finds the extremes of is computed twice, sample by sample, where
the whole batch of it would fill the memory.

A range is of the whole batch, and the next layer waits for it. One loop over the samples computes an activation for
its range alone; the next computes it again, quantizes it and goes on to the next range. Extremes are exact in any
order, and what runs again reads the same bits: no number changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from minbuild.ir import Call, Procedure, Program, Role, TensorType, Value
from minbuild.ir.dims import symbols_in
from minbuild.ops import Registry
from minbuild.passes.analysis.batch_tiles import MINIMUM_SAVING
from minbuild.passes.analysis.call_costs import seconds_of
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.instruction_selection import context_of
from minbuild.passes.analysis.representative_sizes import PLANNED_SIZES, planned_bytes
from minbuild.passes.lowering.loop_call import LOOP
from minbuild.passes.rewrite.batch_tiling import live_peak, tile_batches
from minbuild.passes.rewrite.dead_code import drop_dead_code
from minbuild.passes.rewrite.rematerialization import AGAIN

EXTREMES = frozenset({":ReduceMax", ":ReduceMin"})
LEAST_GAIN = 2  # temporaries shrink to one part in so many, or nothing is computed twice
MOST_TIME = 2  # times that of a step, and no more
MOST_RANGES = 16  # whose activations are computed twice


def recompute_ranges(program: Program, registry: Registry) -> Program:
    """`program` with activations computed again behind their ranges, as far as loops over the batch then need notably
    less memory; `registry` has its operators."""
    found = tuple(_recomputed(p, registry) for p in program.procedures)
    if found == program.procedures:
        return program
    made = replace(program, procedures=found)
    before, after = (_peak(tile_batches(each, registry), registry) for each in (program, made))
    return made if after * LEAST_GAIN <= before else program


def _peak(program: Program, registry: Registry) -> int:
    return max((live_peak(p, registry) for p in program.procedures), default=0)


def _recomputed(procedure: Procedure, registry: Registry) -> Procedure:
    """The procedure with as many activations computed again as the time allows, the largest first."""
    shapes = [procedure.values[name].type.shape for name in procedure.inputs]
    samples = next((shape[0] for shape in shapes if shape), 1)
    if samples == 1 or procedure.loops or any(call.op == LOOP for call in procedure.calls):
        return procedure
    work = _Ranges(replace(procedure, samples=samples), registry)
    chosen = work.candidates()[:MOST_RANGES]
    sizes = dict.fromkeys(_symbols(procedure), PLANNED_SIZES[-1])
    limit = seconds_of(procedure, registry, sizes) * MOST_TIME if chosen else 0
    while chosen:
        made = work.without(frozenset(chosen))
        if seconds_of(made, registry, sizes) <= limit:
            return replace(made, samples=procedure.samples)
        chosen = chosen[:-1]
    return procedure


def _symbols(procedure: Procedure) -> frozenset[str]:
    dims = (d for v in procedure.values.values() for d in v.type.shape or ())
    return frozenset(name for d in dims for name in symbols_in(d))


@dataclass
class _Ranges:
    """One procedure, whose first dimensions count `procedure.samples`, and the extremes of whole batches in it."""

    procedure: Procedure
    registry: Registry
    effects: Effects = field(init=False)

    def __post_init__(self) -> None:
        self.effects = Effects(self.procedure, self.registry)

    def candidates(self) -> list[str]:
        """Storage of batches with a range, the largest first, of those that a loop over samples pays for."""
        found = (self.effects.owner(c.inputs[0]) for c in self.procedure.calls if self.is_range(c))
        values = [self.procedure.values[name] for name in dict.fromkeys(found)]
        sizes = planned_bytes(v for v in values if v.role is Role.TEMPORARY)
        large = [name for name, size in sizes.items() if size >= MINIMUM_SAVING * PLANNED_SIZES[-1]]
        return sorted(large, key=lambda name: -sizes[name])

    def is_range(self, call: Call) -> bool:
        """True if `call` finds an extreme of all elements of all samples."""
        if call.op not in EXTREMES or not self.is_batch(call.inputs[0]):
            return False
        return all(d == 1 for d in self.procedure.values[call.outputs[0]].type.shape or ())

    def is_batch(self, name: str) -> bool:
        """True for a temporary with an item for each sample."""
        shape = self.procedure.values[name].type.shape or ()
        role = self.procedure.values[self.effects.owner(name)].role
        return role is Role.TEMPORARY and len(shape) > 1 and shape[0] == self.procedure.samples

    def without(self, chosen: frozenset[str]) -> Procedure:
        """The procedure with the batches that `chosen` owns computed once for their ranges and again behind them."""
        work = _Rewriting(self, chosen, dict(self.procedure.values), dict(self.procedure.alias))
        for call in self.procedure.calls:
            work.add(call)
        made = replace(self.procedure, calls=tuple(work.calls), values=work.values, alias=work.alias)
        return drop_dead_code(_scalars_early(made, self.registry), self.registry)


@dataclass
class _Rewriting:
    """The calls of a procedure as they are written anew."""

    ranges: _Ranges
    chosen: frozenset[str]
    values: dict[str, Value]
    alias: dict[str, str]
    calls: list[Call] = field(default_factory=list)
    makers: dict[str, Call] = field(default_factory=dict)  # storage -> the call that made it
    gone: set[str] = field(default_factory=set)  # storage that is made again for its next reader
    names: dict[str, str] = field(default_factory=dict)  # values -> their latest copies
    done: set[str] = field(default_factory=set)  # storage whose extremes have their calls

    def add(self, call: Call) -> None:
        """Appends `call`, before it those that make again what it reads and what is gone."""
        owner = self.ranges.effects.owner
        if self.ranges.is_range(call) and owner(call.inputs[0]) in self.chosen:
            self.extremes(owner(call.inputs[0]))
            return
        for name in filter(None, call.inputs):
            self.make_again(owner(name))
        self.calls.append(replace(call, inputs=tuple(self.names.get(n, n) for n in call.inputs)))
        self.makers.update((owner(n), call) for n in call.outputs if n)

    def extremes(self, storage: str) -> None:
        """Appends the extremes of each sample, which a loop finds, and those of all samples, of what `storage` has."""
        if storage in self.done:
            return
        self.done.add(storage)
        last = []
        for call in self.ranges.procedure.calls:
            if not self.ranges.is_range(call) or self.ranges.effects.owner(call.inputs[0]) != storage:
                continue
            name = call.inputs[0]
            batch, each = self.values[name].type, f"{call.outputs[0]} of each sample"
            shape = batch.shape or ()
            ones = (shape[0], *(1 for _ in shape[1:]))
            self.values[each] = Value(each, TensorType(batch.element, ones))
            own = {"axes": tuple(range(1, len(shape))), "keepdims": 1}
            inputs = (self.names.get(name, name),)
            self.calls.append(replace(call, version=13, inputs=inputs, outputs=(each,), attributes=own))
            last.append(replace(call, inputs=(each, *call.inputs[1:])))
        self.calls += last
        self.gone |= self.sources(storage)

    def sources(self, storage: str) -> set[str]:
        """`storage`, and that of all batches that it is made of by calls that can run again."""
        found, waiting = {storage}, [storage]
        while waiting:
            for name in filter(None, self.makers[waiting.pop()].inputs):
                source = self.ranges.effects.owner(name)
                if source not in found and source in self.makers and self.repeats(source):
                    found.add(source)
                    waiting.append(source)
        return found

    def repeats(self, storage: str) -> bool:
        """True if the call that made `storage` treats every sample alone and changes nothing else."""
        call, ranges = self.makers[storage], self.ranges
        alone = ranges.registry.ops[call.op].batched_inputs
        if alone is None or call.accumulate or ranges.effects.mutates(call) or not ranges.is_batch(storage):
            return False
        return bool(tuple(alone(context_of(call, ranges.procedure.values))))

    def make_again(self, storage: str) -> None:
        """Appends the call that makes `storage`, if it is gone, behind those that make what it needs."""
        if storage not in self.gone:
            return
        self.gone.discard(storage)
        call, owner = self.makers[storage], self.ranges.effects.owner
        for name in filter(None, call.inputs):
            self.make_again(owner(name))
        inputs = tuple(self.names.get(n, n) for n in call.inputs)
        for storage in dict.fromkeys(owner(n) for n in call.outputs if n):
            self.copy(storage)
        outputs = tuple(self.names.get(n, n) for n in call.outputs)
        self.calls.append(replace(call, inputs=inputs, outputs=outputs))

    def copy(self, storage: str) -> None:
        """Gives a value and its views second names, under which they are made again."""
        procedure, owner = self.ranges.procedure, self.ranges.effects.owner
        same = [name for name in (storage, *procedure.alias) if owner(name) == storage]
        for name in same:
            before = self.names.get(name, name)
            new = f"{name}{AGAIN})" if before == name else f"{before[:-1]} and again)"
            self.values[new], self.names[name] = replace(procedure.values[name], name=new), new
        for name in same[1:]:
            self.alias[self.names[name]] = self.names[procedure.alias[name]]


def _scalars_early(procedure: Procedure, registry: Registry) -> Procedure:
    """`procedure` with calls that see no batch right behind what they need: none stands in the midst of a loop."""
    effects, samples = Effects(procedure, registry), procedure.samples
    known: dict[str, int] = {}  # storage -> the place of the last call that changed it
    placed: list[tuple[int, int, Call]] = []
    for index, call in enumerate(procedure.calls):
        shapes = [procedure.values[n].type.shape or () for n in (*call.inputs, *call.outputs) if n]
        scalar = not any(len(s) > 1 and s[0] == samples for s in shapes)
        new = all(effects.role(n) is Role.TEMPORARY for n in effects.writes(call))
        moves = scalar and new and not call.accumulate
        place = max((known.get(n, -1) for n in effects.reads(call)), default=-1) if moves else index
        known.update(dict.fromkeys(effects.writes(call), place))
        placed.append((place, index, call))
    # Of those in one place, the call that stands there is the first, and others keep their order.
    placed.sort(key=lambda each: each[:2])
    return replace(procedure, calls=tuple(call for _, _, call in placed))
