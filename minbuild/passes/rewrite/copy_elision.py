"""Copy elision: the call that computes the new value of a variable writes it to the variable itself.

An update binding assigns at the end of a step, when all new values have been computed from the old ones. Where no call
reads the old value after the new one is computed, an alias replaces the assignment; the same holds for an intermediate
result that the new value could overwrite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from minbuild.ir import Call, Procedure, Role
from minbuild.ir.dims import product
from minbuild.ops import Registry
from minbuild.passes.analysis.effects import Effects

ASSIGN = "minbuild:Assign"


def elide_copies(procedure: Procedure, registry: Registry) -> Procedure:
    """Without those calls of Assign that an alias can stand for."""
    work = _Work(procedure, registry)
    for index, call in enumerate(procedure.calls):
        if call.op == ASSIGN and work.alias_to_variable(call.inputs[0], call.inputs[1], index):
            work.calls[index] = replace(call, op="")
    return replace(procedure, calls=tuple(c for c in work.calls if c.op), alias=dict(work.effects.aliases))


@dataclass
class _Work:
    """A procedure while it is rewritten; calls that an alias stands for have no operator."""

    procedure: Procedure
    registry: Registry
    effects: Effects = field(init=False)  # with the aliases so far
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.calls = list(self.procedure.calls)
        self.effects = Effects(self.procedure, self.registry)

    def alias_to_variable(self, variable: str, value: str, until: int) -> bool:
        """Gives `value` the bytes of the variable, if they may be that from the call on that makes it up to the call
        at `until`; then, as far as it goes, what the value is made of."""
        target = self.effects.owner(variable)
        if self.effects.owner(value) == target:  # an operator that works in place has been there
            return True
        made = self.maker(value)
        if (
            made is None
            or not self.same_storage(target, value)
            or not self.is_elementwise_over(made, target, value)
        ):
            return False
        later = (c for c in self.calls[made + 1 : until] if c.op)
        if any(target in self.effects.touches(call) for call in later):
            return False
        sources = list(self.overwritten(made, target, value))
        self.effects.share(self.effects.owner(value), variable)
        any(self.alias_to_variable(variable, source, made) for source in sources)  # one of them can
        return True

    def maker(self, value: str) -> int | None:
        """The call that makes what `value` stands in."""
        owner = self.effects.owner(value)
        found = (i for i, c in enumerate(self.calls) if c.op and owner in self.effects.produces(c))
        return next(found, None)

    def same_storage(self, target: str, value: str) -> bool:
        """True if the bytes of `value` are its own, and as many as the variable has, of the same type."""
        owner, variable = self.procedure.values[self.effects.owner(value)], self.procedure.values[target]
        sizes = product(owner.type.shape or ()), product(variable.type.shape or ())
        same = owner.type.element is variable.type.element and sizes[0] == sizes[1]
        return same and owner.role is Role.TEMPORARY

    def outputs_as(self, call: Call, value: str) -> list[int]:
        return [
            i for i, n in enumerate(call.outputs) if n and self.effects.owner(n) == self.effects.owner(value)
        ]

    def is_elementwise_over(self, made: int, target: str, value: str) -> bool:
        """True if the call that makes `value` may write it over the variable: it does not read that, or only element
        by element as it writes."""
        call = self.calls[made]
        outputs = self.outputs_as(call, value)
        if len(outputs) != 1:
            return False
        sources = {i for i, n in enumerate(call.inputs) if n and self.effects.owner(n) == target}
        allowed = {source for output, source in self.registry.ops[call.op].in_place if output == outputs[0]}
        return sources <= allowed

    def overwritten(self, made: int, target: str, value: str) -> Iterator[str]:
        """The inputs that end with the call that makes `value` and whose place that may take. There are none where
        the call reads the variable itself."""
        call = self.calls[made]
        if target in self.effects.reads(call):
            return
        (output,) = self.outputs_as(call, value)
        later = (c for c in self.calls[made + 1 :] if c.op)
        kept = self.effects.owners(self.procedure.outputs).union(*map(self.effects.touches, later))
        for written, source in self.registry.ops[call.op].in_place:
            if written == output and self.effects.owner(call.inputs[source]) not in kept:
                yield call.inputs[source]
