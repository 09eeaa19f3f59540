"""Recomputation: the memory and the time of a training step that repeats calls of its forward pass.

Of the forward calls that can run a second time, those that are kept leave their results in memory until gradients read
them; all others run again right before the first gradient that needs them. `Recomputation` simulates the step for any
choice of kept calls: the bytes that are live at every position, and the seconds that the repeated calls take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minbuild.ir import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.passes.analysis.call_costs import aligned_bytes, costs_of
from minbuild.passes.analysis.channel_slices import inner_values, loop_over_slices, tiles_of
from minbuild.passes.analysis.effects import Effects, Writes, updates_in_place
from minbuild.passes.analysis.instruction_selection import context_of
from minbuild.passes.analysis.repetition import Checkpoints, Outcome, Outcomes, Simulation, Step
from minbuild.passes.analysis.repetition_memory import Access, Costs, Tiles
from minbuild.passes.rewrite.copy_elision import ASSIGN


class Recomputation:
    """The calls of one `procedure`, at one assignment of `sizes`, that may run twice; `registry` has their operators,
    `outcomes` what is known of equal ones. Storage of temporaries has numbers."""

    def __init__(
        self,
        procedure: Procedure,
        registry: Registry,
        sizes: Mapping[str, int],
        outcomes: Outcomes | None = None,
    ) -> None:
        self.procedure, self.registry, self.sizes = procedure, registry, sizes
        self.effects = effects = Effects(procedure, registry)
        owners = {o for call in procedure.calls for o in effects.touches(call)}
        self.storage = sorted(o for o in owners if effects.role(o) is Role.TEMPORARY)
        self.number = {owner: i for i, owner in enumerate(self.storage)}
        sliced = loop_over_slices(procedure, registry)
        self.bytes = [aligned_bytes(sliced.values[o].type, sizes) for o in self.storage]
        self.reads = [self._numbers(call.inputs) for call in procedure.calls]
        self.writes = [self._numbers(call.outputs) for call in procedure.calls]
        self.loss = self._loss()
        costs = costs_of(sliced, registry, sizes)
        self.heavy = {i for i, cost in enumerate(costs) if cost.multiplies}
        self.seconds, self.scratch = [cost.seconds for cost in costs], [cost.scratch for cost in costs]
        self.in_place = [self._in_place(call) for call in procedure.calls]
        self.repeats = self._repeats()
        self.remade = {i: self._numbers(call.outputs) for i, call in self.repeats.items()}
        self.maker = {number: i for i, numbers in self.remade.items() for number in numbers}
        self.simulation = self._simulation({} if outcomes is None else outcomes)

    # ------------------------------------------------------------------------------------------------- simulation

    def order(self, choice: Checkpoints) -> list[Step]:
        """The calls in order, those that run again among them."""
        return self.simulation.order(choice)

    def outcome(self, choice: Checkpoints) -> Outcome:
        """Memory and time of the step under `choice`."""
        return self.simulation.outcome(choice)

    def bytes_of_call(self, index: int) -> int:
        """The bytes that one call has to have at once."""
        touched = sum(self.bytes[n] for n in {*self.reads[index], *self.writes[index]})
        shared = max((self.bytes[output] for output, _ in self.in_place[index]), default=0)
        return touched + self.scratch[index] - shared

    @property
    def largest_call(self) -> int:
        """The most bytes that one call has to have at once: no order of the calls and no repetition needs less."""
        return max(map(self.bytes_of_call, range(len(self.reads))), default=0)

    @property
    def natural(self) -> frozenset[int]:
        """The repeatable calls whose results gradients read: kept, nothing runs twice."""
        found: set[int] = set()
        waiting = [n for i in range(self.loss + 1, len(self.reads)) for n in self.reads[i]]
        found.update(self.maker[n] for n in waiting if n in self.maker)
        return frozenset(found)

    def saved_seconds(self, index: int) -> float:
        """Seconds saved per byte by keeping the results of a call."""
        return self.seconds[index] / max(sum(self.bytes[n] for n in self.remade[index]), 1)

    @property
    def step_seconds(self) -> float:
        """Seconds of the step where nothing runs twice."""
        return sum(self.seconds)

    # ------------------------------------------------------------------------------------------------- set-up

    def _simulation(self, outcomes: Outcomes) -> Simulation:
        def again(index: int, call: Call) -> Access:
            reads, writes = self._numbers(call.inputs), self.remade[index]
            shared = (p for p in self.in_place[index] if p[0] in writes and p[1] in reads)
            return Access(reads, writes, tuple(shared))

        accesses = zip(self.reads, self.writes, self.in_place, strict=True)
        procedure = self.procedure
        return Simulation(
            [Access(*each) for each in accesses],
            loss=self.loss,
            repeats={i: again(i, call) for i, call in self.repeats.items()},
            returned=frozenset(
                self.number[o] for o in self.effects.owners(procedure.outputs) if o in self.number
            ),
            costs=Costs(self.bytes, self.scratch, self.seconds),
            tiles=Tiles(
                {index: tile for tile in tiles_of(procedure).values() for index in tile},
                frozenset(self.number[o] for o in inner_values(procedure, self.effects)),
            ),
            outcomes=outcomes,
        )

    def _numbers(self, names: Sequence[str]) -> tuple[int, ...]:
        owners = dict.fromkeys(self.effects.owner(name) for name in names if name)
        return tuple(self.number[owner] for owner in owners if owner in self.number)

    def _loss(self) -> int:
        """The last call that writes to the first output, the loss; -1 without one."""
        loss = self.effects.owners(self.procedure.outputs[:1])
        return max(
            (i for i, c in enumerate(self.procedure.calls) if self.effects.produces(c) & loss), default=-1
        )

    def _in_place(self, call: Call) -> tuple[tuple[int, int], ...]:
        """Outputs that may take the bytes of an input, as (output, input)."""
        pairs = []
        for output, source in self.registry.ops[call.op].in_place:
            if output < len(call.outputs) and call.outputs[output] and source < len(call.inputs):
                made, used = self._numbers((call.outputs[output],)), self._numbers((call.inputs[source],))
                if made and used and self.bytes[made[0]] == self.bytes[used[0]]:
                    pairs.append((made[0], used[0]))
        return tuple(pairs)

    def _repeats(self) -> dict[int, Call]:
        """For every forward call that can run twice the call that does so: it changes nothing that persists, draws no
        random numbers, and reads nothing that changes in between. Its results are owners of their storage that no
        other call writes to."""
        procedure, effects = self.procedure, self.effects
        writes = Writes(procedure, effects)
        assigned = [call.inputs[1] for call in procedure.calls if call.op == ASSIGN]
        fixed = effects.owners((*procedure.outputs, *assigned))
        found = {}
        for index, call in enumerate(procedure.calls[: self.loss + 1]):
            again = self._again(call)
            if again is None:
                continue
            made = [name for name in again.outputs if name]
            alone = all(
                effects.owner(n) == n
                and n not in fixed
                and effects.role(n) is Role.TEMPORARY
                and writes.positions.get(n) == [index]
                for n in made
            )
            after = range(index + 1, len(procedure.calls))
            changed = any(writes.any_in(owner, after) for owner in effects.reads(again))
            if made and alone and not changed:
                found[index] = again
        return found

    def _again(self, call: Call) -> Call | None:
        op = self.registry.ops[call.op]
        changes = call.accumulate or updates_in_place(call, self.registry)
        if not changes and op.generator is None and op.lower is not None:
            return call
        repeat = op.rematerialize
        return repeat(call, context_of(call, self.procedure.values)) if repeat else None
