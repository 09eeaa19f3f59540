"""Runs of calls that treat every channel by itself, such as a convolution with one filter per channel, a normalization
by statistics of the batch, and an activation: what one slice of channels needs of the run is the same slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minbuild.ir import Call, Procedure, Role
from minbuild.ops import Registry
from minbuild.ops.core.channel_slices import ChannelSlices
from minbuild.passes.analysis.channel_slices import sliced
from minbuild.passes.analysis.effects import Effects, updated_inputs
from minbuild.passes.analysis.instruction_selection import context_of

MOST_CALLS = 16  # of a run
MOST_ROUNDS = 16  # slices of a run's channels


@dataclass(frozen=True, slots=True)
class ChannelRun:
    """The calls of a procedure at the places `calls`, and the channels that each of them has."""

    calls: range
    channels: int

    def divides(self, rounds: int) -> bool:
        """True if as many slices have two channels each, or more."""
        return self.channels % rounds == 0 and self.channels >= 2 * rounds


def runs_of(procedure: Procedure, registry: Registry) -> tuple[ChannelRun, ...]:
    """The longest runs of `procedure`, which has no loops, in order; `registry` has its operators."""
    finder = _Finder(procedure, registry)
    for index, call in enumerate(procedure.calls):
        finder.place(index, call)
    finder.close(len(procedure.calls))
    return tuple(finder.found)


def channel_slices_of(
    call: Call, procedure: Procedure, registry: Registry, effects: Effects
) -> ChannelSlices | None:
    """The slices of a `call` that makes temporaries only, and updates nothing but slices of running statistics; None
    of others. `effects` are those of `procedure`, `registry` has the operators."""
    op = registry.ops[call.op]
    found = op.channels(context_of(call, procedure.values)) if op.channels and not call.accumulate else None
    if found is None:
        return None
    updated = {name for name in updated_inputs(op, call.inputs) if name}
    if not updated <= {name for name, _ in sliced(call, found)}:
        return None
    owners = effects.owners(updated)
    for i, name in enumerate(call.outputs):
        temporary = name == effects.owner(name) and effects.role(name) is Role.TEMPORARY if name else True
        if name and (i not in found.outputs or not (temporary or effects.owner(name) in owners)):
            return None
    return found


@dataclass
class _Finder:
    """The runs found so far, and the open one: the storage that it changes with the axis of channels, and reads."""

    procedure: Procedure
    registry: Registry
    found: list[ChannelRun] = field(default_factory=list)
    start: int = 0
    channels: int = 0  # 0: no run is open
    made: dict[str, int] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    effects: Effects = field(init=False)

    def __post_init__(self) -> None:
        self.effects = Effects(self.procedure, self.registry)

    def place(self, index: int, call: Call) -> None:
        """Puts the call at the end of the open run, or of a new one, if it goes by slices."""
        slices = channel_slices_of(call, self.procedure, self.registry, self.effects)
        if slices is None or not self.joins(index, call, slices):
            self.close(index)
        if slices is None:
            return
        if not self.channels:
            self.start, self.channels, self.made, self.read = index, slices.channels, {}, set()
        made = {self.effects.owner(n): slices.outputs[i] for i, n in enumerate(call.outputs) if n}
        self.made |= made | dict.fromkeys(self.effects.mutates(call), 0)
        self.read |= self.effects.reads(call)

    def joins(self, index: int, call: Call, slices: ChannelSlices) -> bool:
        """True if a slice of `call` needs nothing of the open run but the same slice."""
        if slices.channels != self.channels or index - self.start >= MOST_CALLS:
            return False
        axes: Mapping[int, int] = slices.inputs
        alike = all(
            self.made.get(self.effects.owner(name), axes.get(i)) == axes.get(i)
            for i, name in enumerate(call.inputs)
            if name
        )
        return alike and not self.effects.writes(call) & (self.made.keys() | self.read)

    def close(self, index: int) -> None:
        if self.channels:
            self.found.append(ChannelRun(range(self.start, index), self.channels))
        self.channels = 0


def part_of(procedure: Procedure, calls: range, registry: Registry) -> Procedure:
    """The `calls` of `procedure` by themselves: what later calls read are outputs. `registry` has the operators."""
    effects = Effects(procedure, registry)
    inside = [procedure.calls[i] for i in calls]
    made = {owner for call in inside for owner in effects.produces(call)}
    others = (call for i, call in enumerate(procedure.calls) if i not in calls)
    kept = {owner for call in others for owner in effects.reads(call)} | effects.owners(procedure.outputs)
    names = {name for call in inside for name in (*call.inputs, *call.outputs) if name}
    names |= effects.owners(names)
    return replace(
        procedure,
        calls=tuple(inside),
        values={name: procedure.values[name] for name in sorted(names)},
        alias={name: owner for name in sorted(names) if (owner := effects.owner(name)) != name},
        inputs=(),
        outputs=tuple(sorted(made & kept)),
    )
