"""Checkpoints of loops: states that a backward loop reads are kept at every k-th round only; the backward loop computes
the k rounds between two of them a second time.

Where a loop over T rounds saves values for a loop that runs the other way, this keeps T / k states and the values of k
rounds instead of T. The backward loop has no loop within it: while it is in one chunk of k rounds, each of its rounds
also runs one forward round of the chunk before, whose values take the places of those that were read
(kernels/ops/recurrent/loop_rows.cc). The same kernels compute the forward rounds twice: no number changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isqrt

import numpy as np

from minbuild.ir import Call, ElementType, Procedure, Program, Role, TensorType, Value
from minbuild.ir.dims import ceil_div, symbols_in
from minbuild.ops import Registry
from minbuild.ops.movement.copy import COPY
from minbuild.ops.recurrent import loop_rows
from minbuild.ops.recurrent.loop_rows import MOVE_ROW, NEXT_ROWS
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.loop_pairs import LoopPair, count_of, loop_pairs
from minbuild.passes.analysis.representative_sizes import planned_size
from minbuild.passes.invariants import LONGEST_LOOP
from minbuild.passes.rewrite.batch_tiling import lasting_bytes, live_peak
from minbuild.passes.rewrite.expand_loops import FILL
from minbuild.passes.rewrite.rematerialization import AGAIN

LEAST_ROUNDS = 64  # shorter loops keep all of their states, unless a number of bytes is given
FREE_ROUNDS = 256  # the length that decisions take for a free one
LEAST_GAIN = 3  # RAM has to fall by a third


def checkpoint_loops(program: Program, registry: Registry) -> Program:
    """With checkpoints in place of what long loops save, where RAM falls by a third; a step takes at most one more
    forward pass of the loops."""
    return _checkpointed_program(program, registry, LEAST_ROUNDS, is_worth)


def checkpoint_all_loops(program: Program, registry: Registry) -> Program:
    """With checkpoints in place of what loops save, where that lowers RAM at all."""
    return _checkpointed_program(program, registry, 1, lambda saved, ram: saved > 0)


def _checkpointed_program(
    program: Program, registry: Registry, rounds: int, worth: Callable[[int, int], bool]
) -> Program:
    """`program` with checkpoints for loops of `rounds` and more, where the bytes saved of all RAM are `worth` it;
    `registry` has the operators."""
    made = tuple(_checkpointed(p, registry, rounds) for p in program.procedures)
    if made == program.procedures:
        return program
    free = (symbols_in(pair.rounds) for p in program.procedures for pair in loop_pairs(p, registry))
    sizes = dict.fromkeys(frozenset().union(*free), FREE_ROUNDS)
    before, after = (max(live_peak(p, registry, sizes) for p in each) for each in (program.procedures, made))
    pays = worth(before - after, before + lasting_bytes(program))
    return replace(program, procedures=made) if pays else program


def is_worth(saved: int, ram: int) -> bool:
    """True if `saved` bytes of `ram` are worth computing the loops a second time."""
    return saved * LEAST_GAIN >= ram


def _checkpointed(procedure: Procedure, registry: Registry, rounds: int) -> Procedure:
    """The procedure with checkpoints for all loops of at least `rounds` rounds that a plan can have as loops then."""

    def rewritten() -> Iterator[Procedure]:
        for pair in loop_pairs(procedure, registry):
            if (isinstance(pair.rounds, int) and pair.rounds < rounds) or _repeats(procedure, pair):
                continue
            made = _Rewriting(procedure, pair, Effects(procedure, registry)).run()
            if all(len(loop) <= LONGEST_LOOP for loop in made.loops):
                yield made

    while (made := next(rewritten(), None)) is not None:
        procedure = made
    return procedure


def _repeats(procedure: Procedure, pair: LoopPair) -> bool:
    """True if rounds of the first loop of `pair` run a second time already, for another reader of its stacks."""
    made = (n for i in pair.again for n in procedure.calls[i].outputs if n)
    return any(f"{name}{AGAIN})" in procedure.values for name in (*pair.carried, *made))


@dataclass
class _Rewriting:
    """One pair of loops being given checkpoints."""

    procedure: Procedure
    pair: LoopPair
    effects: Effects
    before: Mapping[str, Value] = field(init=False)  # values as they were
    values: dict[str, Value] = field(init=False)
    alias: dict[str, str] = field(init=False)
    taken: dict[tuple[str, bool], str] = field(
        default_factory=dict
    )  # slices of stacks that rounds read again
    takes: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        procedure, pair = self.procedure, self.pair
        self.before, self.values, self.alias = procedure.values, dict(procedure.values), dict(procedure.alias)
        self.node = procedure.calls[pair.again[0]].node
        self.slices = {
            stack: next(n for n in procedure.calls[at].outputs if n and self.owner(n) == stack)
            for stack, at in pair.stacks.items()
        }
        again = {self.owner(n) for i in pair.again for n in procedure.calls[i].outputs if n}
        self.local = again - set(pair.carried)
        self.every = self.rounds_of_chunk()

    def owner(self, name: str) -> str:
        return self.effects.owner(name)

    def rounds_of_chunk(self) -> int:
        """The k with the fewest bytes of T / k states and k saved values."""
        states, saved = (
            sum(planned_size(count_of(self.before[n]) * self.before[n].type.element.size) for n in names)
            for names in (self.pair.carried, self.slices.values())
        )
        rounds = self.pair.rounds if isinstance(self.pair.rounds, int) else FREE_ROUNDS
        return max(1, isqrt(rounds * states // max(1, saved)))

    def run(self) -> Procedure:
        """The procedure with both loops rewritten."""
        procedure, (forward, backward) = self.procedure, (self.pair.forward, self.pair.backward)
        calls = procedure.calls
        self.recent = {s: self.temporary(f"{s} of a chunk", s, self.every) for s in self.pair.stacks}
        self.checkpoints = {n: self.checkpoint_of(n) for n in self.pair.carried}
        self.states = {n: self.temporary(f"{n}{AGAIN})", n) for n in self.pair.carried}
        self.recalled = {s: self.temporary(f"{s} of a round", s) for s in self.pair.stacks}
        self.places = [self.rows(f"{self.node}, rows at {loop.start}") for loop in (forward, backward)]
        first = [*calls[: forward.start], self.zeros(self.places[0])]
        one = self.forward_calls()
        middle = [*calls[forward.stop : backward.start], self.zeros(self.places[1])]
        middle += map(self.zeros, self.states.values())
        other = self.backward_calls()
        starts = len(first), len(first) + len(one) + len(middle)
        ends = starts[0] + len(one), starts[1] + len(other)
        moved = {forward: range(starts[0], ends[0]), backward: range(starts[1], ends[1])}
        loops = []
        for loop in procedure.loops:
            by = ends[1] - backward.stop if loop.start >= backward.stop else 0
            by = by or (ends[0] - forward.stop if loop.start >= forward.stop else 0)
            loops.append(moved.get(loop, range(loop.start + by, loop.stop + by)))
        return replace(
            procedure,
            calls=(*first, *one, *middle, *other, *calls[backward.stop :]),
            values=self.values,
            alias=self.alias,
            loops=tuple(loops),
        )

    # ------------------------------------------------------------------------------------------------- values

    def temporary(self, name: str, like: str, rows: int = 0) -> str:
        """A value of its own like a state or a slice of a stack, or of several such rows."""
        tensor = self.before[self.slices.get(like, like)].type
        if rows:
            tensor = replace(tensor, shape=(rows, *(tensor.shape or ())))
        self.values[name] = Value(name, tensor)
        return name

    def checkpoint_of(self, state: str) -> str:
        """A value for a state at every k-th round. Where their number is free, every round has a k-th of the state, and
        the size is a multiple of the number."""
        name, value, rounds = f"checkpoints of {state}", self.before[state], self.pair.rounds
        one = count_of(value)
        shape = (
            ((rounds - 1) // self.every, one)
            if isinstance(rounds, int)
            else (rounds, ceil_div(one, self.every))
        )
        self.values[name] = Value(name, TensorType(value.type.element, shape))
        return name

    def rows(self, name: str) -> str:
        self.values[name] = Value(name, TensorType(ElementType.INT32, (loop_rows.PLACES,)))
        return name

    def plain(self, name: str, target: str) -> None:
        """Has a slice stored in the bytes of `target`, or in its own."""
        self.values[name] = replace(self.values[name], sample=False, backward=False, role=Role.TEMPORARY)
        self.alias.pop(name, None)
        if name != target:
            self.alias[name] = target

    # -------------------------------------------------------------------------------------------------- calls

    def zeros(self, name: str) -> Call:
        zero = {"value": np.zeros(1, self.values[name].type.element.dtype)}
        return Call(FILL, 9, self.node, (), outputs=(name,), attributes=zero)

    def next_rows(self, again: bool) -> Call:
        attributes = {"rounds": self.pair.rounds, "every": self.every, "again": int(again)}
        added = frozenset({0})
        return Call(
            NEXT_ROWS, 1, self.node, (), (self.places[again],), attributes=attributes, accumulate=added
        )

    def move(self, source: str, target: str, place: int, again: bool) -> Call:
        """Moves a row; `target` keeps its others, and all where there is no row."""
        kept = target in self.recent.values() or place == loop_rows.CHECKPOINT
        return Call(
            MOVE_ROW,
            1,
            self.node,
            (source, self.places[again]),
            (target,),
            attributes={"place": place},
            accumulate=frozenset({0}) if kept else frozenset(),
        )

    def saving(self, index: int, call: Call, made: Call, again: bool) -> list[Call]:
        """`made` in the place of `call` with the moves that keep the slices it makes; moves alone for a copy that
        nothing else reads."""
        stacks = [stack for stack, at in self.pair.stacks.items() if at == index]
        if call.op == COPY and stacks and not self.read_in_forward(stacks[0]):
            return [self.move(made.inputs[0], self.recent[stacks[0]], loop_rows.RECENT, again)]
        names = {self.owner(old): new for old, new in zip(call.outputs, made.outputs, strict=True) if old}
        return [made, *(self.move(names[s], self.recent[s], loop_rows.RECENT, again) for s in stacks)]

    def read_in_forward(self, stack: str) -> bool:
        calls = self.procedure.calls
        return any(n and self.owner(n) == stack for i in self.pair.forward for n in calls[i].inputs)

    def forward_calls(self) -> list[Call]:
        """The loop that keeps states, and the values of its last rounds."""
        calls = [self.next_rows(False)]
        for state, kept in self.checkpoints.items():
            calls.append(self.move(state, kept, loop_rows.CHECKPOINT, False))
        for index in self.pair.forward:
            call = self.procedure.calls[index]
            calls += self.saving(index, call, call, False)
            for name in filter(None, (*call.inputs, *call.outputs)):
                if self.owner(name) in self.slices:
                    self.plain(name, self.slices[self.owner(name)])
        return calls

    def backward_calls(self) -> list[Call]:
        """The loop that reads those values, and computes those of the chunk before."""
        calls = [self.next_rows(True)]
        for stack, kept in self.recent.items():
            calls.append(self.move(kept, self.recalled[stack], loop_rows.RECENT, True))
        for state, kept in self.checkpoints.items():
            calls.append(self.move(kept, self.states[state], loop_rows.CHECKPOINT, True))
        repeated = []
        for index in self.pair.again:
            call = self.procedure.calls[index]
            made = replace(
                call,
                inputs=tuple(map(self.again, call.inputs)),
                outputs=tuple(map(self.again, call.outputs)),
            )
            repeated += self.saving(index, call, made, True)
        for index in self.pair.backward:
            call = self.procedure.calls[index]
            repeated.append(call)
            for name in filter(None, call.inputs):
                if self.owner(name) in self.slices:
                    self.plain(name, self.recalled[self.owner(name)])
        return [*calls, *self.takes, *repeated]

    def again(self, name: str) -> str:
        """The name of a value of the first loop in rounds that run a second time."""
        if not name:
            return name
        owner, value = self.owner(name), self.before[name]
        if owner in self.states:
            target = self.states[owner]
        elif owner in self.local:
            base = self.slices.get(owner) or self.made_slice(owner)
            target = f"{base}{AGAIN})"
            self.values.setdefault(target, _own(self.before[base], target))
        elif value.sample:
            target = self.take(name, owner)
        else:
            return name
        copied = f"{name}{AGAIN})"
        if copied != target:
            self.values[copied] = _own(value, copied)
            self.alias[copied] = target
        return copied

    def made_slice(self, owner: str) -> str:
        """The slice of `owner` that a round makes; `owner` where it is no stack."""
        names = (n for i in self.pair.again for n in self.procedure.calls[i].outputs if n)
        name = next(n for n in names if self.owner(n) == owner)
        return name if self.before[name].sample else owner

    def take(self, name: str, stack: str) -> str:
        """A copy of the slice `name` of a `stack`, of the round that runs a second time."""
        backward = self.before[name].backward
        if (stack, backward) not in self.taken:
            copied = self.taken[stack, backward] = f"{name}{AGAIN})"
            self.values[copied] = _own(self.before[name], copied)
            place = loop_rows.AGAIN_BACKWARD if backward else loop_rows.AGAIN_FORWARD
            self.takes.append(self.move(stack, copied, place, True))
        return self.taken[stack, backward]


def _own(value: Value, name: str) -> Value:
    return replace(value, name=name, role=Role.TEMPORARY, sample=False, backward=False)
