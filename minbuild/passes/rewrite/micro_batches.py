"""Micro-batches: a training step that computes its batch in slices, one after the other, and adds their gradients up.

The procedure of one slice becomes the body of a loop over all slices. What the caller hands over and what it reads is
the whole batch as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.errors import Unsupported
from minbuild.ir import Call, ElementType, Procedure, Role, TensorType, Value
from minbuild.ir.dims import Dim, product
from minbuild.ops.movement.copy import COPY
from minbuild.passes.analysis.aliases import views_of
from minbuild.passes.lowering.loop_call import LOOP

_CAST, _SIZES, _RECIPROCAL = ":Cast", "minbuild:Sizes", ":Reciprocal"
_SHARE, _RANGE = "minbuild:LabelShare", "minbuild:IndexRange"

# How slices make an output of the whole batch: rows of it, its mean, its sum, or each of them all of it.
ROWS, MEAN, SUM, SAME = "rows", "mean", "sum", "same"


@dataclass(frozen=True, slots=True)
class LabelShare:
    """An input of the graph of a slice: what the sum over labels of a slice is multiplied by, for slices to have the
    mean over the labels of the whole batch as their mean. `labels` and `weights` are of the whole batch, `weights` ""
    without; labels equal to `ignored` do not count."""

    name: str
    labels: str
    weights: str
    classes: int
    ignored: int | None


@dataclass(frozen=True, slots=True)
class IndexRange:
    """An input of the user whose elements must be in `range(first, stop)` or equal to `ignored`."""

    name: str
    first: int
    stop: int
    ignored: int | None = None


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """The slices of one graph: `rounds` of them make a batch. `whole` is the procedure of the whole batch, as lowered,
    `outputs` how slices make each of its outputs. `seed` names the initial gradient, an input of a slice, that is 1
    divided by the rounds; "" where it is a constant or there is none."""

    whole: Procedure
    rounds: Dim
    outputs: tuple[str, ...]
    seed: str = ""
    shares: tuple[LabelShare, ...] = ()
    ranges: tuple[IndexRange, ...] = ()

    def looped(self, procedure: Procedure) -> Procedure:
        """`procedure`, which is that of one slice, in a loop over all slices. Raises Unsupported where it has loops
        of its own, or views of an input that are no whole slice."""
        return _Loop(self, procedure).run()


@dataclass
class _Loop:
    micro: MicroBatches
    slice: Procedure
    values: dict[str, Value] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    before: list[Call] = field(default_factory=list)  # in every round
    inside: list[Call] = field(default_factory=list)
    ends: list[Call] = field(default_factory=list)  # of every round
    after: list[Call] = field(default_factory=list)

    def run(self) -> Procedure:
        calls = self.slice.calls
        if self.slice.loops or any(call.op == LOOP for call in calls):
            raise Unsupported([f"{self.slice.source}: it has loops, and loops within loops there are not"])
        self.values, self.alias = dict(self.slice.values), dict(self.slice.alias)
        self.inside = list(self.slice.calls)
        for name in self.micro.whole.inputs:
            self.see(name)
        self.check_indices()
        self.make_shares()
        for name, kind in zip(self.micro.whole.outputs, self.micro.outputs, strict=True):
            self.gather(name, kind)
        rounds = [*self.before, *self.inside, *self.ends]
        return replace(
            self.slice,
            calls=(*rounds, *self.after),
            values=self.values,
            alias=self.alias,
            inputs=self.micro.whole.inputs,
            outputs=self.micro.whole.outputs,
            loops=(range(len(rounds)),),
            samples=self.micro.rounds,
        )

    def see(self, name: str) -> None:
        """Has all calls read a slice of the user's input `name`."""
        whole, one = self.micro.whole.values[name], self.slice.values[name]
        if whole.type == one.type:
            return
        seen = f"{name} (slice)"
        for view in views_of(self.alias, name):
            value = self.values[view]
            if _bytes(value) != _bytes(one):
                raise Unsupported([f"{self.slice.source}: input '{name}' is read in parts"])
            self.values[view], self.alias[view] = replace(value, sample=True), name
        self.values[seen] = Value(seen, one.type, sample=True)
        self.alias[seen] = name
        self.values[name] = whole
        self.inside = [
            replace(c, inputs=tuple(seen if n == name else n for n in c.inputs)) for c in self.inside
        ]

    def check_indices(self) -> None:
        """Has indices of the whole batch checked in front of the first slice, so that a call which is refused has
        changed nothing."""
        for each in self.micro.ranges:
            name = f"least of {each.name}"
            self.values[name] = Value(name, TensorType(self.values[each.name].type.element, ()))
            limits = {"from": each.first, "to": each.stop}
            attributes = limits | ({} if each.ignored is None else {"ignore_index": each.ignored})
            self.before.append(Call(_RANGE, 1, "slices", (each.name,), (name,), attributes=attributes))

    def make_shares(self) -> None:
        """Computes what depends on the whole batch."""
        if self.micro.shares:
            self.number("rounds", ())
        for share in self.micro.shares:
            value = self.values[share.name]
            self.values[share.name] = replace(value, role=Role.TEMPORARY)
            like = f"{share.name} type"
            self.values[like] = _constant(like, np.zeros((), value.type.element.dtype), value.type.element)
            attributes = {"classes": share.classes}
            attributes |= {} if share.ignored is None else {"ignore_index": share.ignored}
            inputs = (share.labels, like, "rounds", *filter(None, (share.weights,)))
            self.before.append(Call(_SHARE, 1, "slices", inputs, (share.name,), attributes=attributes))
        seed = self.micro.seed
        if seed:
            value = self.values[seed]
            self.values[seed] = replace(value, role=Role.TEMPORARY)
            count = self.number("rounds", value.type.shape or ())
            numbers, real = f"{count} as numbers", f"{count} as real numbers"
            self.values[numbers] = Value(numbers, TensorType(ElementType.INT64, value.type.shape))
            self.values[real] = Value(real, value.type)
            to = {"to": int(value.type.element)}
            self.before += (
                Call(_SIZES, 1, "slices", (count,), (numbers,)),
                Call(_CAST, 13, "slices", (numbers,), (real,), attributes=to),
                Call(_RECIPROCAL, 13, "slices", (real,), (seed,)),
            )

    def number(self, name: str, shape: tuple[Dim, ...]) -> str:
        """The number of rounds as a value of size 1, which only sizes are made of."""
        content = np.array([self.micro.rounds], object).reshape([1] * max(1, len(shape)))
        self.values[name] = Value(name, TensorType(ElementType.INT64, content.shape), constant=content)
        return name

    def gather(self, name: str, kind: str) -> None:
        """Has slices make the output `name`."""
        inner, slot, whole = f"{name} (slice)", f"{name} (place of slice)", self.micro.whole.values[name]
        self.rename(name, inner)
        one = self.values[inner].type
        node = next((c.node for c in self.slice.calls if name in c.outputs), "slices")
        self.values[name] = replace(whole, role=Role.TEMPORARY)
        if kind == SAME:
            self.after.append(Call(COPY, 1, node, (inner,), (name,)))
            return
        target = name
        if kind != ROWS:
            target = f"{name} (of slices)"
            self.values[target] = Value(
                target, TensorType(one.element, (self.micro.rounds, *(one.shape or ())))
            )
            reduce = ":ReduceMean" if kind == MEAN else ":ReduceSum"
            attributes: Mapping[str, object] = {"axes": (0,), "keepdims": 0}
            version = 11  # with axes as an attribute
            self.after.append(Call(reduce, version, node, (target,), (name,), attributes=attributes))
        self.values[slot] = Value(slot, one, sample=True)
        self.alias[slot] = target
        self.ends.append(Call(COPY, 1, node, (inner,), (slot,)))

    def rename(self, name: str, other: str) -> None:
        """`other` for the value `name` of a slice."""

        def new(each: str) -> str:
            return other if each == name else each

        self.values[other] = replace(self.values[name], name=other)
        self.alias = {new(view): new(owner) for view, owner in self.alias.items()}
        self.inside = [
            replace(c, inputs=tuple(map(new, c.inputs)), outputs=tuple(map(new, c.outputs)))
            for c in self.inside
        ]


def _constant(name: str, content: np.ndarray, element: ElementType) -> Value:
    return Value(name, TensorType(element, content.shape), Role.CONSTANT, content)


def _bytes(value: Value) -> Dim:
    return product(value.type.shape or ()) * value.type.element.size
