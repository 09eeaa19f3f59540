"""Pieces that are cut from tensors only to be put together in another order are copied once.

A recurrent layer of PyTorch is exported with the gates of its weights in another order, by slices and a concatenation,
and their gradients by the reverse: each weight would be copied twice before the layer, and each gradient twice behind
it, and then added to its buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from minbuild.ir import Call, Procedure
from minbuild.ops import Registry
from minbuild.ops.core.definition import FLOATS
from minbuild.passes.analysis.effects import Effects, Writes
from minbuild.passes.analysis.liveness import readers

GATHER = "minbuild:GatherPieces"
_CONCAT = frozenset({":Concat", "com.microsoft:ConcatTraining"})
_SPLIT = frozenset({":Split", "com.microsoft:SplitTraining"})
_SLICE = ":Slice"


def join_pieces(procedure: Procedure, registry: Registry) -> Procedure:
    """With one GatherPieces in place of Concat where an input is a piece of another tensor, along the same axis, that
    nothing else reads."""
    if not any(call.op in _SPLIT or call.op == _SLICE for call in procedure.calls):
        return procedure
    graph = _Graph(procedure, registry)
    for index, call in enumerate(procedure.calls):
        if graph.joins(index):
            graph.calls[index] = graph.joined(call, index)
    return replace(procedure, calls=tuple(graph.calls))


@dataclass(frozen=True)
class _Piece:
    """Elements of a value along the axis."""

    name: str
    start: int
    size: int


class _Graph:
    """A procedure while it is rewritten: each call is replaced where it stands."""

    def __init__(self, procedure: Procedure, registry: Registry) -> None:
        self.procedure, self.registry = procedure, registry
        self.calls = list(procedure.calls)
        self.effects = Effects(procedure, registry)
        self.read_by = readers(procedure, self.effects)
        self.made_by = {n: i for i, c in enumerate(procedure.calls) for n in self.effects.produces(c)}

    @cached_property
    def writes(self) -> Writes:
        return Writes(self.procedure, self.effects)

    def shape(self, name: str) -> tuple[object, ...]:
        return tuple(self.procedure.values[name].type.shape or ())

    def axis(self, call: Call) -> int:
        """The axis of a Concat or Split, counted from the front."""
        default = 1 if call.op in _CONCAT else 0
        return int(call.attributes.get("axis", default)) % max(1, len(self.shape(call.inputs[0])))

    def joins(self, index: int) -> bool:
        """True if the call is a concatenation of pieces whose sizes are known."""
        call = self.procedure.calls[index]
        if call.op not in _CONCAT or call.accumulate or not call.outputs[0]:
            return False
        floats = self.procedure.values[call.outputs[0]].type.element in FLOATS
        read = any(self.read_by[self.effects.owner(name)] for name in call.outputs[1:] if name)
        axis = self.axis(call)
        return floats and not read and all(isinstance(self.shape(n)[axis], int) for n in call.inputs)

    def joined(self, call: Call, index: int) -> Call:
        """GatherPieces in place of a concatenation of pieces, else the call itself."""
        axis, pieces, whole = self.axis(call), [], 0
        for name in call.inputs:
            size = self.shape(name)[axis]
            assert isinstance(size, int)
            found = self.pieces(name, axis, index)
            whole += found is None
            pieces += found or [_Piece(name, 0, size)]
        if whole == len(call.inputs):
            return call
        return Call(
            GATHER,
            1,
            call.node,
            inputs=tuple(piece.name for piece in pieces),
            outputs=call.outputs[:1],
            attributes={
                "axis": axis,
                "starts": tuple(piece.start for piece in pieces),
                "sizes": tuple(piece.size for piece in pieces),
            },
        )

    def maker(self, name: str) -> int | None:
        """The call that makes `name`, in the shape under which it is read."""
        index = self.made_by.get(self.effects.owner(name))
        return index if index is not None and name in self.calls[index].outputs else None

    def pieces(self, name: str, axis: int, until: int) -> list[_Piece] | None:
        """The pieces that `name` is made of, which the call at `until` may read in its place; None where it is to be
        read itself."""
        made = self.maker(name)
        if made is None:
            return None
        call = self.calls[made]
        found: list[_Piece] | None = None
        if call.op == GATHER and call.attributes["axis"] == axis and self.only_reader(name):
            places = zip(call.inputs, call.attributes["starts"], call.attributes["sizes"], strict=True)
            found = [_Piece(*place) for place in places]
        elif (piece := self.piece(name, axis)) is not None:
            found = [piece]
        if found is None or any(self.changes(piece.name, range(made, until)) for piece in found):
            return None
        return found

    def piece(self, name: str, axis: int) -> _Piece | None:
        """The piece along the axis that `name` is of another value, if no call needs a copy of it."""
        made, size = self.maker(name), self.shape(name)[axis]
        if made is None or not isinstance(size, int):
            return None
        call = self.calls[made]
        start = None
        if call.op in _SPLIT and self.axis(call) == axis and self.dissolves(made):
            before = [self.shape(n)[axis] for n in call.outputs[: call.outputs.index(name)]]
            start = sum(n for n in before if isinstance(n, int))
        elif call.op == _SLICE and self.only_reader(name):
            start = self.slice_start(call, axis)
        if start is None:
            return None
        within = self.piece(call.inputs[0], axis) if call.op in _SPLIT else None
        return (
            _Piece(within.name, within.start + start, size) if within else _Piece(call.inputs[0], start, size)
        )

    def only_reader(self, name: str) -> bool:
        return len(self.read_by[self.effects.owner(name)]) == 1

    def dissolves(self, index: int) -> bool:
        """True if all results of the Split are pieces of known size that only concatenations along the same axis read,
        or others that dissolve."""
        call = self.procedure.calls[index]
        axis = self.axis(call)
        if not all(call.outputs) or not all(isinstance(self.shape(n)[axis], int) for n in call.outputs):
            return False
        for name in call.outputs:
            for reader in self.read_by[self.effects.owner(name)]:
                if reader >= len(self.procedure.calls):
                    return False
                by = self.procedure.calls[reader]
                if name not in by.inputs or by.op not in _CONCAT | _SPLIT or self.axis(by) != axis:
                    return False
                if not (self.joins(reader) if by.op in _CONCAT else self.dissolves(reader)):
                    return False
        return True

    def slice_start(self, call: Call, axis: int) -> int | None:
        """The first element of a Slice along this axis alone, forwards and one by one; None for others."""
        whole, taken = self.shape(call.inputs[0]), self.shape(call.outputs[0])
        if any(a != b for i, (a, b) in enumerate(zip(whole, taken, strict=True)) if i != axis):
            return None
        starts, axes, steps = (
            self.numbers(call, i, n) for i, n in ((1, "starts"), (3, "axes"), (4, "steps"))
        )
        size = whole[axis]
        if starts is None or not isinstance(size, int) or any(step != 1 for step in steps or ()):
            return None
        if len(call.inputs) > 4 and call.inputs[4] and steps is None:
            return None
        places = axes if axes is not None else range(len(starts))
        for place, start in zip(places, starts, strict=True):
            if place % len(whole) == axis:
                return min(max(start + size if start < 0 else start, 0), size)
        return 0

    def numbers(self, call: Call, number: int, attribute: str) -> Sequence[int] | None:
        """The contents of input `number`, or the attribute that older versions have in its place."""
        name = call.inputs[number] if number < len(call.inputs) else ""
        given = self.procedure.values[name].constant if name else call.attributes.get(attribute)
        if given is None or (isinstance(given, np.ndarray) and given.dtype == object):
            return None
        return [int(n) for n in np.asarray(given).ravel()]

    def changes(self, name: str, calls: range) -> bool:
        """True if the value, which outlives the procedure, is changed by one of the calls."""
        owner = self.effects.owner(name)
        return self.effects.role(owner).persists and self.writes.any_in(owner, calls)
