"""In-place execution: elementwise results overwrite an input that is dead behind the call."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from minbuild.ir import Call, Procedure, Role, Value
from minbuild.ir.dims import Dim, product
from minbuild.ops import Registry
from minbuild.ops.recurrent.loop_rows import reads_again
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.liveness import first_writes, last_uses


def run_in_place(procedure: Procedure, registry: Registry) -> Procedure:
    """Adds an alias from output to input where the operator allows it and the input's bytes die at the call."""
    effects = Effects(procedure, registry)
    last, rounds = last_uses(procedure, effects), _Rounds(procedure, effects)
    for index, call in enumerate(procedure.calls):
        for output, source in registry.ops[call.op].in_place:
            if not _fits(procedure, effects, call, output, source):
                continue
            target = effects.owner(call.inputs[source])
            if last[target] == index and rounds.end(call.inputs[source], index):
                result = _whole(procedure, effects, call.outputs[output])
                last[target] = max(last[target], last[result])
                effects.share(result, target)
                rounds.share(result, target)
                break
    shared = replace(procedure, alias=dict(effects.aliases))
    return _reuse_samples(shared, registry) if procedure.loops else shared


def _whole(procedure: Procedure, effects: Effects, name: str) -> str:
    """The value itself; of one sample, the value of the whole batch."""
    return effects.aliases[name] if procedure.values[name].sample else name


def _fits(procedure: Procedure, effects: Effects, call: Call, output: int, source: int) -> bool:
    """True if the bytes of input `source` suffice for output `output`, and no other output of the call is in them."""
    if output >= len(call.outputs) or not call.outputs[output]:
        return False
    values = procedure.values
    result, given = values[call.outputs[output]], values[call.inputs[source]]
    made = _whole(procedure, effects, result.name)
    if made in effects.aliases or values[made].role is not Role.TEMPORARY:
        return False
    # Slices of loops in opposite directions are other elements in the same round.
    if (result.sample, result.backward) != (given.sample, given.backward):
        return False
    owner = values[effects.owner(given.name)]
    # The input may come twice (x * x); that is fine for kernels that read an element before they write it. It must
    # not be needed under another name by a different output of the same call.
    if owner.role is not Role.TEMPORARY or owner.name in effects.produces(call):
        return False
    read = values[_whole(procedure, effects, given.name)]
    fits = result.type.element.size == given.type.element.size and _equally_many(result, given)
    return fits and _equally_many(owner, read)


def _count(value: Value) -> Dim:
    return product(value.type.shape or ())


def _equally_many(one: Value, other: Value) -> bool:
    """True if both have as many elements; values of one type do, whatever its shape is."""
    return one.type is other.type or _count(one) == _count(other)


def _same(one: Value, other: Value) -> bool:
    """True if both have as many elements of the same type."""
    return one.type.element == other.type.element and _equally_many(one, other)


@dataclass
class _Rounds:
    """The loops of one procedure, and for every owner of storage the loops whose rounds write it before they touch it
    otherwise, and those that read it whole in every round."""

    procedure: Procedure
    effects: Effects
    loop_at: dict[int, range] = field(init=False)  # call -> the loop that it is in
    renewing: dict[str, set[range]] = field(default_factory=lambda: defaultdict(set))
    reading: dict[str, set[range]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        loops = self.procedure.loops
        self.loop_at = {index: loop for loop in loops for index in loop}
        for loop in loops:
            for owner in self._renewed(loop):
                self.renewing[owner].add(loop)
            for owner in _read_whole(self.procedure, self.effects, loop):
                self.reading[owner].add(loop)

    def end(self, name: str, index: int) -> bool:
        """True if no later round of a loop around call `index` reads the same bytes as `name`."""
        loop = self.loop_at.get(index)
        if loop is None:
            return True
        owner = self.effects.owner(name)
        if self.procedure.values[name].sample:
            return loop not in self.reading.get(owner, ())
        return loop in self.renewing.get(owner, ())

    def _renewed(self, loop: range) -> set[str]:
        """Storage that every round of a loop writes first. A state, which the round before wrote, is read first."""
        found, touched = set[str](), set[str]()
        for index in loop:
            call = self.procedure.calls[index]
            kept = self.effects.owners(call.outputs[i] for i in call.accumulate) | self.effects.reads(call)
            found |= self.effects.produces(call) - kept - touched
            touched |= self.effects.touches(call)
        return found

    def share(self, name: str, target: str) -> None:
        """Counts what touches the storage of `name` as touching that of `target`, as `Effects.share` does."""
        for loops in (self.renewing, self.reading):
            if name in loops:
                loops[target] |= loops.pop(name)


def _read_whole(procedure: Procedure, effects: Effects, loop: range) -> frozenset[str]:
    """The values that every round of a loop reads whole. What a round reads again of an earlier one
    (checkpoint_loops.py) is a slice as well, and later rounds of the loop write it."""
    return effects.owners(
        n
        for i in loop
        for n in procedure.calls[i].inputs
        if n and not procedure.values[n].sample and not reads_again(procedure.calls[i])
    )


def _reuse_samples(procedure: Procedure, registry: Registry) -> Procedure:
    """Outputs of a loop take the place of the values it consumes, sample by sample, where both are equally large and
    every round reads its sample of the one before it writes that of the other."""
    values, effects = procedure.values, Effects(procedure, registry)
    last, first = last_uses(procedure, effects), first_writes(procedure, effects)
    for loop in procedure.loops:
        used = effects.owners(n for i in loop for n in procedure.calls[i].inputs if n and values[n].sample)
        used -= _read_whole(procedure, effects, loop)
        ways = {
            values[n].backward for i in loop for n in procedure.calls[i].outputs if n and values[n].sample
        }
        ways |= {
            values[n].backward for i in loop for n in procedure.calls[i].inputs if n and values[n].sample
        }
        if len(ways) > 1:
            continue
        for index in loop:
            for name in filter(None, procedure.calls[index].outputs):
                made = effects.owner(name)
                if not values[name].sample or first[made] != index:
                    continue
                for old in sorted(used):
                    ends = last[old] in loop and last[old] < index and first.get(old, index) < loop.start
                    if ends and values[old].role is Role.TEMPORARY and _same(values[old], values[made]):
                        effects.share(made, old)
                        last[old] = last[made]
                        break
    return replace(procedure, alias=dict(effects.aliases))
