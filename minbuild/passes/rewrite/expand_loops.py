"""Expansion of loops: the calls of a body in the place of the call that stands for the loop, run once per round.

Slices of scan inputs and outputs are samples of the whole values, which the rounds see one by one. A carried state has
one place, the loop's result: it is filled before the loop, read by a round, and written at its end. What a round only
adds to a state that starts from zero is added where it is made, as gradients of parameters are. Rounds whose guard is
false are skipped (`ops/recurrent/loop_control.py`), and leave zeros in the results that are made of slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.ir import Call, ElementType, Procedure, Role, TensorType, Value
from minbuild.ops import Registry
from minbuild.ops.movement.copy import COPY
from minbuild.ops.recurrent.loop_control import SET_ROUNDS, SKIP_ROUND
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.lowering.loop_call import LOOP

FILL = ":ConstantOfShape"
_ADD, _ADD_TO = ":Add", "minbuild:AddToGradient"


def expand_loops(procedure: Procedure, registry: Registry) -> Procedure:
    """Without calls of Scan. The rounds of loops are `procedure.samples` until a call sets others."""
    lengths = [call.attributes["rounds"] for call in procedure.calls if call.op == LOOP]
    for index in reversed(range(len(procedure.calls))):
        if procedure.calls[index].op == LOOP:
            now = lengths.pop()
            changes = lengths and lengths[-1] != now
            procedure = _Expansion(procedure, registry, index, sets_rounds=bool(changes)).run()
    return procedure


@dataclass
class _Expansion:
    """The call of a loop at `index` of a procedure being replaced by the calls of its body."""

    procedure: Procedure
    registry: Registry
    index: int
    sets_rounds: bool  # the loop before it has others
    values: dict[str, Value] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    before: list[Call] = field(default_factory=list)
    inside: list[Call] = field(default_factory=list)
    ends: list[Call] = field(default_factory=list)  # of every round
    after: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.call = self.procedure.calls[self.index]
        self.body: Procedure = self.call.attributes["body"]
        self.carried = int(self.call.attributes["carried"])
        self.owner = Effects(self.body, self.registry).owner
        self.guard = str(self.call.attributes["guard"])
        self.inside = self.read_calls()
        self.alias = {**self.body.alias, **self.procedure.alias}
        self.values = {**self.body.values, **self.procedure.values}
        self.placed: set[str] = set()  # results of the body that are made where they belong

    def run(self) -> Procedure:
        """The procedure with the loop at its place."""
        backward = self.call.attributes["backward"]
        scans = list(zip(self.body.inputs[self.carried :], self.call.inputs[self.carried :], strict=False))
        stacked = list(zip(self.body.outputs[self.carried :], self.call.outputs[self.carried :], strict=True))
        for (inner, outer), way in zip(scans, backward, strict=False):
            self.see(inner, outer, bool(way))
        for i, ((inner, outer), way) in enumerate(zip(stacked, backward[len(scans) :], strict=True)):
            if outer:
                self.stack(inner, self.target(outer, self.carried + i), bool(way))
        for i in range(self.carried):
            if self.body.outputs[i] in self.lasting:
                self.carry(i)
            else:
                del self.values[self.body.inputs[i]]
        self.control()
        return self.assembled()

    def control(self) -> None:
        """Sets the number of rounds, and skips those whose guard is false."""
        if self.sets_rounds:
            name = f"rounds of {self.call.node} at {self.index}"
            self.values[name] = Value(name, TensorType(ElementType.INT32, (1,)))
            rounds = {"rounds": self.call.attributes["rounds"]}
            self.before.append(Call(SET_ROUNDS, 1, self.call.node, (), (name,), attributes=rounds))
        if self.guard:
            self.inside.insert(0, Call(SKIP_ROUND, 1, self.call.node, (self.guard,), ()))

    def read_calls(self) -> list[Call]:
        """The calls of the body that lead to a result that is read, or to a state that such calls read. Sets `lasting`,
        the results of the body that count."""
        found = zip(self.body.outputs, self.call.outputs, strict=True)
        self.lasting = {inner for inner, outer in found if outer}
        read = {self.guard}
        while True:
            states = zip(self.body.inputs[: self.carried], self.body.outputs, strict=False)
            more = {after for before, after in states if before in read} - self.lasting
            self.lasting |= more
            needed, kept = {self.owner(n) for n in self.lasting}, []
            for call in reversed(self.body.calls):
                outputs = tuple(n if n and self.owner(n) in needed else "" for n in call.outputs)
                if any(outputs):
                    kept.append(replace(call, outputs=outputs))
                    needed |= {self.owner(n) for n in call.inputs if n}
            fresh = {self.owner(n) for n in needed} - read
            read |= fresh
            if not more and not fresh:
                return kept[::-1]

    # ------------------------------------------------------------------------------------------------- results

    def target(self, outer: str, output: int) -> str:
        """Where the loop writes its output number `output`: a value of its own where that is added to a buffer."""
        if output not in self.call.accumulate:
            return outer
        owner = self.values[outer]
        name = f"{outer} (of the loop)"
        self.values[name] = Value(name, owner.type)
        step = Call(_ADD_TO, 1, self.call.node, (name,), outputs=(outer,), accumulate=frozenset({0}))
        self.after.append(step)
        return name

    def see(self, inner: str, outer: str, backward: bool) -> None:
        """One slice of the value `outer`, the next in every round."""
        one = self.body.values[inner].type
        self.values[inner] = Value(inner, one, sample=True, backward=backward)
        self.alias[inner] = outer
        self.views(inner, inner)

    def stack(self, inner: str, outer: str, backward: bool) -> None:
        """The result `inner` of a round as one slice of `outer`."""
        name = f"{inner} (one of {outer})"
        self.values[name] = Value(name, self.body.values[inner].type, sample=True, backward=backward)
        self.alias[name] = outer
        if self.guard:
            self.fill(outer)
        self.write(inner, name, behind=-1)

    def carry(self, i: int) -> None:
        """A state: its place, filled before the loop and written at the end of each round."""
        inner, after, start = self.body.inputs[i], self.body.outputs[i], self.call.inputs[i]
        if (
            i in self.call.accumulate
            and self.call.outputs[i]
            and not self.guard  # the first round, which replaces gradients, may be skipped
            and self.add_up(inner, after, start, self.call.outputs[i], fills=False)
        ):
            return
        place = self.target(self.call.outputs[i], i) if self.call.outputs[i] else f"{inner} (carried)"
        self.values.setdefault(place, Value(place, self.body.values[inner].type))
        if self.add_up(inner, after, start, place, fills=True):
            return
        self.begin(start, place)
        self.values[inner] = replace(self.body.values[inner], role=Role.TEMPORARY)
        self.alias[inner] = place
        name = f"{after} (next {place})"
        self.values[name] = Value(name, self.body.values[after].type)
        self.alias[name] = place
        last = max((k for k, call in enumerate(self.inside) if self.reads(call, inner)), default=-1)
        self.write(after, name, behind=last)

    def write(self, inner: str, name: str, behind: int) -> None:
        """The result `inner` of a round under another name: made there, if the call that makes it comes behind call
        number `behind`, else copied at the end of the round."""
        owner = self.owner(inner)
        makers = [k for k, call in enumerate(self.inside) if owner in call.outputs]
        alone = self.same_size(owner, inner) and owner not in self.body.inputs and owner not in self.placed
        if len(makers) == 1 and makers[0] > behind and alone and owner in self.body.values:
            made = self.body.values[owner]
            if made.role is Role.TEMPORARY and made.constant is None:
                self.placed.add(owner)
                self.values[owner] = replace(
                    made, sample=self.values[name].sample, backward=self.values[name].backward
                )
                self.alias[owner] = self.alias[name]
                self.views(owner, name)
                return
        self.ends.append(Call(COPY, 1, self.call.node, (inner,), (name,)))

    def views(self, owner: str, name: str) -> None:
        """Views of what is a slice now are slices as well."""
        for view in self.body.values:
            if view != owner and self.owner(view) == owner:
                self.values[view] = replace(
                    self.body.values[view],
                    sample=self.values[name].sample,
                    backward=self.values[name].backward,
                )
                self.alias[view] = self.alias[name]

    def same_size(self, one: str, other: str) -> bool:
        a, b = self.body.values[one].type, self.body.values[other].type
        return a.element is b.element and a.shape == b.shape

    def reads(self, call: Call, name: str) -> bool:
        return any(n and self.owner(n) == name for n in call.inputs)

    # ------------------------------------------------------------------------------------------------- sums

    def add_up(self, inner: str, after: str, start: str, place: str, fills: bool) -> bool:
        """Has a state that starts from zero, and to which every round only adds, added up where its summands are made;
        False for other states. A `place` that is a gradient's buffer is not filled with zeros first."""
        first = self.values[start].constant
        if not self.values[start].type.element.is_real:
            return False
        total = self.owner(after)  # a guarded loop's state is a view of its sum
        makers = [k for k, call in enumerate(self.inside) if total in call.outputs]
        readers = [k for k, call in enumerate(self.inside) if self.reads(call, inner)]
        if first is None or first.dtype == object or np.any(first) or len(makers) != 1 or readers != makers:
            return False
        maker = self.inside[makers[0]]
        if maker.op != _ADD or maker.inputs.count(inner) != 1 or not self.same_size(total, after):
            return False
        (part,) = (n for n in maker.inputs if n != inner)
        if self.body.values[part].type != self.body.values[after].type:
            return False
        ends = [self.owner(n) for n in self.body.outputs]
        if ends.count(total) != 1 or any(self.reads(call, total) for call in self.inside):
            return False
        owner = self.owner(part)
        name = f"{after} (summed)"
        self.values[name] = Value(name, self.body.values[after].type)
        self.alias[name] = place
        del self.inside[makers[0]]
        made = [k for k, call in enumerate(self.inside) if owner in call.outputs]
        read = sum(self.reads(call, owner) for call in self.inside)
        results = {self.owner(n) for n in self.body.outputs}
        if len(made) == 1 and not read and owner not in results and owner not in self.body.inputs:
            source = self.inside[made[0]]
            output = source.outputs.index(owner)
            if output in self.registry.ops[source.op].accumulates and owner not in self.placed:
                summed = f"{owner} (summed)"
                self.values[summed] = replace(self.body.values[owner], name=summed)
                self.alias[summed] = place
                outputs = tuple(summed if n == owner else n for n in source.outputs)
                added = source.accumulate | {output}
                self.inside[made[0]] = replace(source, outputs=outputs, accumulate=added)
                if fills:
                    self.fill(place)
                return True
        at = made[0] + 1 if made else len(self.inside)
        step = Call(_ADD_TO, 1, self.call.node, (part,), outputs=(name,), accumulate=frozenset({0}))
        self.inside.insert(at, step)
        if fills:
            self.fill(place)
        return True

    # ------------------------------------------------------------------------------------------------- starts

    def begin(self, start: str, place: str) -> None:
        """Has a state start: one number in all elements takes no constant of that size."""
        constant = self.values[start].constant
        if constant is None or constant.dtype == object or constant.size < 2 or not _is_uniform(constant):
            self.before.append(Call(COPY, 1, self.call.node, (start,), (place,)))
        else:
            self.fill(place, constant.ravel()[0])

    def fill(self, place: str, number: np.generic | int = 0) -> None:
        one = {"value": np.full(1, number, self.values[place].type.element.dtype)}
        self.before.append(Call(FILL, 9, self.call.node, (), outputs=(place,), attributes=one))

    def assembled(self) -> Procedure:
        calls = self.procedure.calls
        rounds = [*self.inside, *self.ends]
        start = self.index + len(self.before)
        more = len(self.before) + len(rounds) + len(self.after) - 1
        later: Sequence[range] = [
            range(loop.start + more, loop.stop + more)
            for loop in self.procedure.loops
            if loop.start > self.index
        ]
        return replace(
            self.procedure,
            calls=(*calls[: self.index], *self.before, *rounds, *self.after, *calls[self.index + 1 :]),
            values=self.values,
            alias=self.alias,
            loops=(range(start, start + len(rounds)), *later),
            samples=self.call.attributes["rounds"],  # of the first, which is expanded last
        )


def _is_uniform(array: np.ndarray) -> bool:
    """True if all elements have the same bits."""
    return array.tobytes() == array.ravel()[:1].tobytes() * array.size
