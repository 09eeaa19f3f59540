"""Gradient checkpointing: repeats segments of the forward pass in front of their gradients, so that a training step
fits into a number of bytes.

The choice of what to keep and what to repeat is that of `analysis.checkpoints`. Repeated calls read the same bits as
the first ones and compute the same: no number changes, and what persists, such as running statistics, is updated
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minbuild.ir import Call, Procedure, Program, Value
from minbuild.ops import Registry
from minbuild.passes.analysis.checkpoints import choose_checkpoints
from minbuild.passes.analysis.instruction_selection import context_of
from minbuild.passes.analysis.recomputation import Recomputation, Step
from minbuild.passes.contracts import Pass
from minbuild.passes.invariants import NO_VIEWS
from minbuild.passes.lowering.loop_call import LOOP
from minbuild.passes.rewrite.rematerialization import AGAIN, rematerialize_cheap

TRAIN = "train"
_LARGE_CALL = 3  # a call with more than one part in so many of the limit computes its outputs one by one


def checkpointing(limit: int, sizes: Mapping[str, int]) -> Pass:
    """The pass in the place of `rematerialize_cheap` that has the live temporaries of a training step take at most
    `limit` bytes, where that is possible, when the free dimensions have `sizes`."""

    def function(program: Program, registry: Registry) -> Program:
        return replace(
            program,
            procedures=tuple(
                checkpoint(p, registry, limit, sizes) if p.name == TRAIN else rematerialize_cheap(p, registry)
                for p in program.procedures
            ),
        )

    return Pass(checkpoint.__name__, function, (NO_VIEWS,), (NO_VIEWS,))


def checkpoint(procedure: Procedure, registry: Registry, limit: int, sizes: Mapping[str, int]) -> Procedure:
    """`procedure` with calls repeated for at most `limit` live bytes at these `sizes`; `registry` has its operators.
    Where there are loops, whose bodies cannot be there twice, nothing but what is cheap is repeated."""
    if any(call.op == LOOP for call in procedure.calls):
        return rematerialize_cheap(procedure, registry)
    work = Recomputation(_with_smaller_calls(procedure, registry, limit, sizes), registry, sizes)
    choice, _ = choose_checkpoints(work, limit)
    return _Rewriting(work).run(work.order(choice))


def _with_smaller_calls(
    procedure: Procedure, registry: Registry, limit: int, sizes: Mapping[str, int]
) -> Procedure:
    """`procedure` with a call for each output of operators that compute these independently, where one call touches
    more than a share of `limit`: between two calls, what only one of them reads comes and goes."""
    whole = Recomputation(procedure, registry, sizes)
    calls: list[Call] = []
    for index, call in enumerate(procedure.calls):
        divide = registry.ops[call.op].split
        large = whole.bytes_of_call(index) * _LARGE_CALL > limit
        calls += divide(call, context_of(call, procedure.values)) if divide and large else [call]
    return replace(procedure, calls=tuple(calls))


@dataclass
class _Rewriting:
    """The procedure while calls are added that run again."""

    work: Recomputation
    values: dict[str, Value] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)

    def run(self, steps: list[Step]) -> Procedure:
        procedure = self.work.procedure
        self.values, self.alias = dict(procedure.values), dict(procedure.alias)
        return replace(procedure, calls=tuple(map(self.call, steps)), values=self.values, alias=self.alias)

    def call(self, step: Step) -> Call:
        call = self.work.repeats[step.index] if step.again else self.work.procedure.calls[step.index]
        inputs = tuple(self.copy(name, step.reads) for name in call.inputs)
        outputs = tuple(self.copy(name, step.makes) for name in call.outputs)
        return (
            call
            if (inputs, outputs) == (call.inputs, call.outputs)
            else replace(call, inputs=inputs, outputs=outputs)
        )

    def copy(self, name: str, copies: Mapping[int, int]) -> str:
        """The name of the copy of value `name` that a step reads or makes."""
        if not name:
            return name
        owner = self.work.effects.owner(name)
        number = copies.get(self.work.number.get(owner, -1), 0)
        if not number:
            return name
        copied = f"{name}{AGAIN}{f', {number}' if number > 1 else ''})"
        self.values.setdefault(copied, replace(self.values[name], name=copied))
        if name != owner:
            self.alias[copied] = self.copy(owner, copies)
        return copied
