"""Batch tiling, the analysis: tiles are sequences of calls that treat every sample independently and can run as a loop
over the samples.

The temporaries that only a tile reads then need room for one sample. The arithmetic on each sample is the same, and
sums over samples are added up in the order in which their kernels add, so no number changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.ir import Call, Procedure, Role, TensorType, Value
from minbuild.ir.dims import Dim
from minbuild.ops import Registry
from minbuild.passes.analysis.aliases import present_outputs, root
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.instruction_selection import context_of
from minbuild.passes.analysis.representative_sizes import PLANNED_SIZES, planned_bytes
from minbuild.passes.invariants import LONGEST_LOOP
from minbuild.passes.rewrite.hoist_updates import read_by_updates

FILL = ":ConstantOfShape"
MINIMUM_SAVING = 4096  # per sample: what a loop must save to be worth its rounds


def split_calls(
    procedure: Procedure, registry: Registry, which: Callable[[int], bool] = lambda index: True
) -> Procedure:
    """`procedure` with a call for each output of operators of `registry` that compute their outputs independently
    (`Op.split`), of the calls `which` chooses by their index."""
    calls: list[Call] = []
    for index, call in enumerate(procedure.calls):
        divide = registry.ops[call.op].split
        calls += divide(call, context_of(call, procedure.values)) if divide and which(index) else [call]
    return replace(procedure, calls=tuple(calls))


@dataclass
class _OpenTile:
    """Neighbouring calls that treat samples independently, and the storage they read and write."""

    calls: list[Call] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)


@dataclass
class Tiles:
    """One procedure, whose first dimensions count `procedure.samples`: its calls in an order that makes long tiles, and
    the tiles for which a loop pays."""

    procedure: Procedure
    registry: Registry
    calls: list[Call] = field(default_factory=list)
    loops: list[range] = field(default_factory=list)
    tile: _OpenTile = field(default_factory=_OpenTile)
    first_use: dict[str, int] = field(default_factory=dict)  # of storage: a call
    last_use: dict[str, int] = field(default_factory=dict)
    for_updates: frozenset[str] = frozenset()  # temporaries that only updates of variables read
    effects: Effects = field(init=False)

    def __post_init__(self) -> None:
        self.effects = Effects(self.procedure, self.registry)
        self.for_updates = read_by_updates(self.procedure, self.registry)
        for call in self.procedure.calls:
            self.place(call)
        self.close()
        for index, call in enumerate(self.calls):
            for owner in self.effects.touches(call):
                self.first_use.setdefault(owner, index)
                self.last_use[owner] = index
        for owner in self.effects.owners(self.procedure.outputs):
            self.last_use[owner] = len(self.calls)
        self.loops = [loop for tile in self.loops if (loop := self.loop_in(tile))]

    def looped(self, loops: Sequence[range]) -> Procedure:
        """The procedure with these loops, which are in order."""
        names = _Renaming(dict(self.procedure.alias), dict(self.procedure.values))
        calls = list(self.calls)
        for loop in loops:
            self.rename(calls, loop, names)
        work = replace(self.procedure, calls=tuple(calls), values=names.values, alias=names.alias)
        return _with_empty_sums(replace(work, loops=(*work.loops, *loops)))

    # ------------------------------------------------------------------------------------------------- finding

    def place(self, call: Call) -> None:
        """Puts the call into the open tile, before it, or behind it."""
        read, written = self.effects.reads(call), self.effects.writes(call)
        sliced = self.sliced_inputs(call)
        if sliced is not None and self.joins(call, sliced, written) and len(self.tile.calls) < LONGEST_LOOP:
            self.tile.calls.append(call)
            self.tile.read |= read
            self.tile.written |= written
        elif self.can_precede(read, written):
            self.calls.append(call)
        else:
            self.close()
            if sliced is not None:
                self.tile = _OpenTile([call], set(read), set(written))
            else:
                self.calls.append(call)

    def close(self) -> None:
        if self.tile.calls:
            self.loops.append(range(len(self.calls), len(self.calls) + len(self.tile.calls)))
            self.calls += self.tile.calls
        self.tile = _OpenTile()

    def joins(self, call: Call, sliced: frozenset[str], written: frozenset[str]) -> bool:
        """True if one sample of `call`, which reads its inputs `sliced` by sample and changes the storage `written`,
        needs nothing of the open tile but the same sample."""
        whole = self.effects.owners(n for n in call.inputs if n not in sliced)
        return not whole & self.tile.written and not written & (self.tile.read | self.tile.written)

    def can_precede(self, read: frozenset[str], written: frozenset[str]) -> bool:
        """True if a call that only makes gradients, or adds to them, may as well come before the open tile."""
        tile, values = self.tile, self.procedure.values
        lasting = all(values[n].role is Role.GRADIENT or n in self.for_updates for n in written)
        return lasting and not (read | written) & tile.written and not written & tile.read

    def sliced_inputs(self, call: Call) -> frozenset[str] | None:
        """The inputs of a call that go sample by sample, together with its outputs; None if it does not."""
        op, procedure = self.registry.ops[call.op], self.procedure
        if op.batched_inputs is None or self.effects.mutates(call):
            return None
        alone = set(op.batched_inputs(context_of(call, procedure.values)))
        rank = max(len(procedure.values[n].type.shape or ()) for n in present_outputs(call))
        names = set()
        for i, name in enumerate(call.inputs):
            shape = procedure.values[name].type.shape or () if name else ()
            if i not in alone or not name:
                continue
            if shape and shape[0] == procedure.samples and len(shape) == rank:
                names.add(name)
            elif shape and len(shape) == rank and shape[0] != 1:
                return None
        for i, name in enumerate(call.outputs):
            if name and not self.makes_samples(call, i, i in op.batch_sums):
                return None
        return frozenset(names) or None

    def makes_samples(self, call: Call, output: int, is_sum: bool) -> bool:
        """True if `call` can write one sample of output number `output` at a time, or add it where the output `is_sum`
        over the batch."""
        value = self.procedure.values[call.outputs[output]]
        role = self.effects.role(self.effects.owner(value.name))
        if is_sum:
            return output in call.accumulate or self.is_new_sum(call, output)
        shape = value.type.shape or ()
        return role is Role.TEMPORARY and bool(shape) and shape[0] == self.procedure.samples

    def is_new_sum(self, call: Call, output: int) -> bool:
        """True if an output is a sum of its own that only updates of variables read: a loop can add it up."""
        owner = self.effects.owner(call.outputs[output])
        op = self.registry.ops[call.op]
        return output in op.batch_sums & op.accumulates and owner in self.for_updates and not call.accumulate

    # ----------------------------------------------------------------------------------------------- rewriting

    def inner(self, tile: range) -> set[str]:
        """Temporaries that only the calls of a tile make and use."""
        made = {owner for i in tile for owner in self.effects.produces(self.calls[i])}
        only = (name for name in made if self.first_use[name] in tile and self.last_use[name] in tile)
        return {name for name in only if self.procedure.values[name].role is Role.TEMPORARY}

    def loop_in(self, tile: range) -> range | None:
        """The part of a tile that makes what only it uses, if that is much."""
        inner = self.inner(tile)
        saved = planned_bytes(self.procedure.values[name] for name in inner)
        if sum(saved.values()) < MINIMUM_SAVING * PLANNED_SIZES[-1]:
            return None
        return range(min(self.first_use[n] for n in inner), max(self.last_use[n] for n in inner) + 1)

    def rename(self, calls: list[Call], loop: range, names: _Renaming) -> None:
        """Has the `calls` in `loop` see one sample of everything, as `names` calls it."""
        names.inner = self.inner(loop)
        for index in loop:
            call = calls[index]
            sliced = self.sliced_inputs(call) or frozenset()
            sums = self.registry.ops[call.op].batch_sums
            inputs = tuple(names.sample(n) if n in sliced else n for n in call.inputs)
            outputs = tuple(n if i in sums else names.sample(n) for i, n in enumerate(call.outputs))
            added = {i for i in sums if i < len(outputs) and outputs[i]}
            calls[index] = replace(call, inputs=inputs, outputs=outputs, accumulate=call.accumulate | added)


def _with_empty_sums(procedure: Procedure) -> Procedure:
    """Sums that are temporaries are zero when the loop begins that adds to them."""
    calls: list[Call] = []
    loops: list[range] = []
    done = 0
    for loop in procedure.loops:
        inside = procedure.calls[loop.start : loop.stop]
        sums = [(call.node, call.outputs[i]) for call in inside for i in sorted(call.accumulate)]
        calls += procedure.calls[done : loop.start]
        for node, name in sums:
            value = procedure.values[root(procedure.alias, name)]
            if value.role is Role.TEMPORARY:
                zero = {"value": np.zeros(1, value.type.element.dtype)}
                calls.append(Call(FILL, 9, node, inputs=(), outputs=(name,), attributes=zero))
        loops.append(range(len(calls), len(calls) + len(inside)))
        calls += inside
        done = loop.stop
    return replace(procedure, calls=(*calls, *procedure.calls[done:]), loops=tuple(loops))


@dataclass
class _Renaming:
    """Values as a loop sees them: one sample of each."""

    alias: dict[str, str]
    values: dict[str, Value]
    inner: set[str] = field(default_factory=set)  # what only the loop makes and uses

    def sample(self, name: str) -> str:
        """Values of the loop's own shrink to one sample; of others it sees one sample under another name."""
        if not name:
            return name
        value = self.values[name]
        one = TensorType(value.type.element, _of_one(value.type.shape or ()))
        if root(self.alias, name) in self.inner:
            self.values[name] = replace(value, type=one)
            return name
        seen = f"{name} (one sample)"
        self.values[seen] = replace(value, name=seen, type=one, constant=None, sample=True)
        self.alias[seen] = name
        return seen


def _of_one(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    return (1, *shape[1:])
