"""Channel tiling: chains of large gradients of one image, in slices of channels.

Gradients of activations, of normalization, of pooling and of convolutions with one filter per channel treat every
channel by itself, and so do the calls of the forward pass whose results they read. A loop over slices of channels makes
these results again, slice by slice, next to their gradients: neither is ever there as a whole. The arithmetic on each
channel is the same, so no number changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from minbuild.ir import Call, Procedure, Role, Value
from minbuild.ops import Registry
from minbuild.ops.core.channel_slices import ChannelSlices
from minbuild.passes.analysis.channel_slices import TILE, slices_of
from minbuild.passes.analysis.recomputation import Recomputation
from minbuild.passes.rewrite.rematerialization import AGAIN

_LARGE_CALL = 3  # a tile begins and ends with a call that touches more than the limit divided by it
_SMALL_RESULT = 16  # results of fewer bytes than the limit divided by it are read as they are
_ADD = "minbuild:AddToGradient"


def tile_channels(
    procedure: Procedure, registry: Registry, limit: int, sizes: Mapping[str, int]
) -> Procedure:
    """`procedure`, a training step, with marks at tiles of gradients (`analysis.channel_slices`) where single calls
    touch more than a share of `limit` bytes at these `sizes`. `registry` has the operators."""
    return _Tiling(Recomputation(procedure, registry, sizes), limit).run()


@dataclass
class _Tile:
    """Gradients one after the other that treat as many channels, and the storage they read and write."""

    channels: int = 0
    members: list[int] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)


@dataclass
class _Tiling:
    work: Recomputation
    limit: int
    calls: list[Call] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    tile: _Tile = field(default_factory=_Tile)
    tiles: int = 0

    def run(self) -> Procedure:
        procedure, loss = self.work.procedure, self.work.loss
        self.values = dict(procedure.values)
        self.calls = list(procedure.calls[: loss + 1])
        for index in range(loss + 1, len(procedure.calls)):
            self.place(index)
        self.close()
        return replace(procedure, calls=tuple(self.calls), values=self.values) if self.tiles else procedure

    # ------------------------------------------------------------------------------------------------- finding

    def place(self, index: int) -> None:
        """Puts a call into the open tile, before it, or behind it."""
        work, tile = self.work, self.tile
        call = work.procedure.calls[index]
        read, written = set(work.effects.reads(call)), set(work.effects.writes(call))
        slices = self.slices(call)
        if slices and tile.members and not self.joins(call, slices, written):
            if self.can_precede(read, written):
                return self.calls.append(call)
            self.close()
        elif not slices:
            if not tile.members or not self.can_precede(read, written):
                self.close()
            return self.calls.append(call)
        self.tile.channels = slices.channels if slices else 0
        self.tile.members.append(index)
        self.tile.read |= read
        self.tile.written |= written
        return None

    def slices(self, call: Call) -> ChannelSlices | None:
        """The slices of a gradient that makes temporaries and adds to gradients, both slice by slice."""
        found = slices_of(call, self.work.procedure, self.work.registry)
        for i, name in enumerate(call.outputs if found else ()):
            owner = self.work.effects.owner(name) if name else ""
            role = self.work.effects.role(owner) if name else Role.TEMPORARY
            adds = role is Role.GRADIENT and i in call.accumulate
            if name and (found is None or i not in found.outputs or not (adds or role is Role.TEMPORARY)):
                return None
        return found

    def joins(self, call: Call, slices: ChannelSlices, written: set[str]) -> bool:
        """True if a slice of `call` needs nothing of the open tile but the same slice. `written` is the storage that
        the call changes."""
        whole = self.work.effects.owners(n for i, n in enumerate(call.inputs) if i not in slices.inputs)
        tile = self.tile
        return (
            slices.channels == tile.channels
            and not whole & tile.written
            and not written & (tile.read | tile.written)
        )

    def can_precede(self, read: set[str], written: set[str]) -> bool:
        """True if a call that makes little may as well come before the open tile."""
        work, tile = self.work, self.tile
        made = sum(work.bytes[work.number[owner]] for owner in written if owner in work.number)
        apart = not (read | written) & tile.written and not written & tile.read
        return apart and made * _SMALL_RESULT <= self.limit

    # ------------------------------------------------------------------------------------------------- making

    def close(self) -> None:
        """Ends the open tile, which begins and ends with large calls."""
        members, self.tile = self.tile.members, _Tile()
        large = [n for n, i in enumerate(members) if self.work.bytes_of_call(i) * _LARGE_CALL > self.limit]
        first, last = (large[0], large[-1] + 1) if large else (len(members), len(members))
        calls = self.work.procedure.calls
        self.calls += (calls[i] for i in members[:first])
        if large:
            self.tiles += 1
            self.calls += _Slicing(self, [calls[i] for i in members[first:last]]).run()
        self.calls += (calls[i] for i in members[last:])


@dataclass
class _Slicing:
    """The calls of one tile, those that make forward results again among them."""

    tiling: _Tiling
    gradients: Sequence[Call]
    made: set[str] = field(default_factory=set)  # storage
    again: dict[str, str] = field(default_factory=dict)  # forward results -> their slices
    calls: list[Call] = field(default_factory=list)
    sums: list[Call] = field(default_factory=list)  # added to gradients behind the tile

    def run(self) -> Iterator[Call]:
        self.made = {o for call in self.gradients for o in self.tiling.work.effects.produces(call)}
        for call in self.gradients:
            slices = self.tiling.slices(call)
            assert slices is not None
            inputs = tuple(
                self.source(name, slices.channels) if i in slices.inputs else name
                for i, name in enumerate(call.inputs)
            )
            outputs = tuple(self.target(call, i) for i in range(len(call.outputs)))
            self.calls.append(replace(call, inputs=inputs, outputs=outputs, accumulate=frozenset()))
        for call in self.calls:
            yield replace(call, attributes={**call.attributes, TILE: self.tiling.tiles})
        yield from self.sums

    def target(self, call: Call, output: int) -> str:
        """The output itself, or a temporary for what is added to a gradient: a reset replaces gradients in the first
        round of a loop only."""
        name = call.outputs[output]
        if not name or output not in call.accumulate:
            return name
        made = f"{name} (by slices)"
        self.tiling.values[made] = Value(made, self.tiling.values[name].type)
        self.sums.append(Call(_ADD, 1, call.node, (made,), (name,), accumulate=frozenset({0})))
        return made

    def source(self, name: str, channels: int) -> str:
        """The value to read a slice of in the place of `name`: a large one of the forward pass is made again, if that
        goes by slices."""
        work, tiling = self.tiling.work, self.tiling
        if name in self.again:
            return self.again[name]
        number = work.number.get(name)  # None of views, and of what persists
        maker = None if number is None or name in self.made else work.maker.get(number)
        if maker is None or number is None or work.bytes[number] * _SMALL_RESULT <= tiling.limit:
            return name
        call = work.repeats[maker]
        slices = slices_of(call, work.procedure, work.registry)
        if slices is None or slices.channels != channels:
            return name
        inputs = tuple(
            self.source(n, channels) if i in slices.inputs else n for i, n in enumerate(call.inputs)
        )
        outputs = tuple(self.copy(n) if n else n for n in call.outputs)
        self.calls.append(replace(call, inputs=inputs, outputs=outputs))
        return self.again[name]

    def copy(self, name: str) -> str:
        copied = self.again[name] = f"{name}{AGAIN}, slices {self.tiling.tiles})"
        self.tiling.values[copied] = replace(self.tiling.values[name], name=copied)
        return copied
