"""Contracts of passes: invariants of a Procedure that passes require and ensure, checked by the runner in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from minbuild.ir import RESET_INPUT, Procedure, Program, Role
from minbuild.ops import Registry
from minbuild.passes.analysis.aliases import reads
from minbuild.passes.analysis.effects import Effects

ACCUMULATOR = "com.microsoft:InPlaceAccumulatorV2"
LONGEST_LOOP = 255  # calls: the plan counts the steps of a loop in a byte


@dataclass(frozen=True, slots=True)
class Invariant:
    """A property of a procedure. `violations` yields one text for every place that breaks it."""

    name: str
    violations: Callable[[Procedure, Registry], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Pass:
    """A rewrite of a Program: `function` is pure. It may assume the invariants in `requires`, and those in `ensures`
    hold behind it: every pass says both, if only `()`. `ALWAYS` hold before and behind every pass."""

    name: str
    function: Callable[[Program, Registry], Program]
    requires: tuple[Invariant, ...]
    ensures: tuple[Invariant, ...]


class ContractViolation(Exception):
    """A pass got or made a program that breaks an invariant: a mistake in minbuild, never in its input."""


def check(program: Program, registry: Registry, invariants: Sequence[Invariant], where: str) -> None:
    """Raises ContractViolation with everything in `program` that breaks the first broken one of `invariants`; later
    ones may rely on it. `where` is the place among the passes, for the message."""
    for invariant in invariants:
        found = [
            f"{where}: {invariant.name}: {procedure.name}: {text}"
            for procedure in program.procedures
            for text in invariant.violations(procedure, registry)
        ]
        if found:
            raise ContractViolation("\n".join(found[:10]))


def _undefined(procedure: Procedure, registry: Registry) -> Iterator[str]:
    names = [n for call in procedure.calls for n in (*call.inputs, *call.outputs)]
    for name in dict.fromkeys((*names, *procedure.inputs, *procedure.outputs, *procedure.alias)):
        if name and name not in procedure.values:
            yield f"'{name}' has no type"


def _read_early(procedure: Procedure, registry: Registry) -> Iterator[str]:
    effects = Effects(procedure, registry)
    written = {RESET_INPUT}  # the session itself knows whether gradients are reset
    for call in procedure.calls:
        for name in reads(call):
            owner = procedure.values[effects.owner(name)]
            if owner.role is Role.TEMPORARY and owner.constant is None and owner.name not in written:
                yield f"node '{call.node}' ({call.op}) reads '{name}' before a call writes it"
        written |= effects.produces(call)


def _written_twice(procedure: Procedure, registry: Registry) -> Iterator[str]:
    written: set[str] = set()
    for call in procedure.calls:
        for i, name in enumerate(call.outputs):
            if name and i not in call.accumulate and procedure.values[name].role is Role.TEMPORARY:
                if name in written:
                    yield f"node '{call.node}' ({call.op}) writes '{name}' a second time"
                written.add(name)


def _cyclic(procedure: Procedure, registry: Registry) -> Iterator[str]:
    done: set[str] = set()
    for start in procedure.alias:
        chain = {start: None}
        name = start
        while name in procedure.alias and name not in done:
            name = procedure.alias[name]
            if name in chain:
                yield f"'{start}' is an alias of itself"
                break
            chain[name] = None
        done.update(chain)


def _bad_loops(procedure: Procedure, registry: Registry) -> Iterator[str]:
    end = 0
    for loop in procedure.loops:
        if loop.start < end or loop.stop > len(procedure.calls):
            yield f"the loop over calls {loop.start} to {loop.stop - 1} overlaps another one or the end"
        if len(loop) > LONGEST_LOOP:
            yield f"the loop at call {loop.start} has {len(loop)} calls"
        end = loop.stop


def _views(procedure: Procedure, registry: Registry) -> Iterator[str]:
    for call in procedure.calls:
        if registry.ops[call.op].is_view:
            yield f"node '{call.node}' ({call.op}) is a view"


def _accumulators(procedure: Procedure, registry: Registry) -> Iterator[str]:
    for call in procedure.calls:
        if call.op == ACCUMULATOR:
            yield f"node '{call.node}' still accumulates '{call.inputs[1]}' by itself"


def _dead(procedure: Procedure, registry: Registry) -> Iterator[str]:
    effects = Effects(procedure, registry)
    for call in procedure.calls:
        if not effects.writes(call):
            yield f"node '{call.node}' ({call.op}) has no result"


TYPED = Invariant("every name has a type", _undefined)
ACYCLIC_ALIASES = Invariant("no value is an alias of itself", _cyclic)
TOPOLOGICAL = Invariant("values are written before they are read", _read_early)
SINGLE_WRITER = Invariant("every temporary has one writer", _written_twice)
DISJOINT_LOOPS = Invariant("loops are disjoint and short", _bad_loops)
NO_VIEWS = Invariant("views are aliases", _views)
NO_ACCUMULATORS = Invariant("gradients are accumulated where they are made", _accumulators)
NO_DEAD_CALLS = Invariant("every call has a result", _dead)
ALWAYS = (TYPED, ACYCLIC_ALIASES, TOPOLOGICAL, SINGLE_WRITER, DISJOINT_LOOPS)
