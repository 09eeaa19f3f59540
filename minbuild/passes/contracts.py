"""Contracts of passes: what a pass requires, ensures and preserves, checked by the runner in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import is_

from minbuild.ir import Procedure, Program
from minbuild.ops import Registry


@dataclass(frozen=True, slots=True)
class Invariant:
    """A property of a procedure. `violations` yields one text for every place that breaks it."""

    name: str
    violations: Callable[[Procedure, Registry], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Relation:
    """A property of a rewrite. `violations` compares a procedure before it with the one after it, and yields one text
    for every difference that the rewrite may not make."""

    name: str
    violations: Callable[[Procedure, Procedure], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Pass:
    """A rewrite of a Program: `function` is pure. It may assume the invariants in `requires`; those in `ensures` hold
    behind it, and between the programs before and after it the relations in `preserves`. Every pass says what it
    requires and ensures, if only `()`. The invariants `ALWAYS` hold before and behind every pass, and the relation
    `SAME_INTERFACE` across it."""

    name: str
    function: Callable[[Program, Registry], Program]
    requires: tuple[Invariant, ...]
    ensures: tuple[Invariant, ...]
    preserves: tuple[Relation, ...] = ()


class ContractViolation(Exception):
    """A pass got or made a program that breaks an invariant: a mistake in minbuild, never in its input."""


class Known:
    """The invariants that procedures were found to hold. Most passes leave most procedures as they are, and what is
    unchanged is not checked again."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Procedure, set[Invariant]]] = {}

    def of(self, procedure: Procedure) -> set[Invariant]:
        """Those of `procedure`, to which the caller adds what it finds."""
        earlier = self._found.get(procedure.name)
        held = earlier[1] if earlier and unchanged(earlier[0], procedure) else set()
        self._found[procedure.name] = procedure, held
        return held


def unchanged(one: Procedure, other: Procedure) -> bool:
    """True if two procedures consist of the very same objects. Equal ones may be found to differ."""
    if one is other:
        return True
    if len(one.calls) != len(other.calls) or one.values.keys() != other.values.keys():
        return False
    rest = "name", "source", "inputs", "outputs", "alias", "loops", "samples"
    return (
        all(map(is_, one.calls, other.calls))
        and all(value is other.values[name] for name, value in one.values.items())
        and all(getattr(one, name) == getattr(other, name) for name in rest)
    )


def check(
    program: Program,
    registry: Registry,
    invariants: Sequence[Invariant],
    where: str,
    known: Known | None = None,
) -> None:
    """Raises ContractViolation with everything in `program` that breaks the first broken one of `invariants`; later
    ones may rely on it. `registry` holds the operators, `where` is the place among the passes, for the message,
    `known` remembers what holds from one call to the next."""
    known = known or Known()
    rest = [(p, held) for p in program.procedures if not (held := known.of(p)).issuperset(invariants)]
    if not rest:
        return
    for invariant in invariants:
        _raise(
            f"{where}: {invariant.name}: {procedure.name}: {text}"
            for procedure, held in rest
            if invariant not in held
            for text in invariant.violations(procedure, registry)
        )
    for _, held in rest:
        held.update(invariants)


def check_relations(before: Program, after: Program, relations: Sequence[Relation], where: str) -> None:
    """Raises ContractViolation with all differences between `before` and `after` that the first broken one of
    `relations` forbids. `where` is the place among the passes, for the message."""
    own = {procedure.name: procedure for procedure in after.procedures}
    _raise(f"{where}: procedure '{p.name}' is lost" for p in before.procedures if p.name not in own)
    changed = [p for p in before.procedures if not unchanged(p, own[p.name])]
    if not changed:
        return
    for relation in relations:
        _raise(
            f"{where}: {relation.name}: {procedure.name}: {text}"
            for procedure in changed
            for text in relation.violations(procedure, own[procedure.name])
        )


def _raise(found: Iterator[str]) -> None:
    if lines := list(found):
        raise ContractViolation("\n".join(lines[:10]))
