"""Contracts of passes: what a pass requires, ensures and preserves, checked by the runner in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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


def check(program: Program, registry: Registry, invariants: Sequence[Invariant], where: str) -> None:
    """Raises ContractViolation with everything in `program` that breaks the first broken one of `invariants`; later
    ones may rely on it. `registry` holds the operators, `where` is the place among the passes, for the message."""
    for invariant in invariants:
        _raise(
            f"{where}: {invariant.name}: {procedure.name}: {text}"
            for procedure in program.procedures
            for text in invariant.violations(procedure, registry)
        )


def check_relations(before: Program, after: Program, relations: Sequence[Relation], where: str) -> None:
    """Raises ContractViolation with all differences between `before` and `after` that the first broken one of
    `relations` forbids. `where` is the place among the passes, for the message."""
    own = {procedure.name: procedure for procedure in after.procedures}
    _raise(f"{where}: procedure '{p.name}' is lost" for p in before.procedures if p.name not in own)
    for relation in relations:
        _raise(
            f"{where}: {relation.name}: {procedure.name}: {text}"
            for procedure in before.procedures
            for text in relation.violations(procedure, own[procedure.name])
        )


def _raise(found: Iterator[str]) -> None:
    if lines := list(found):
        raise ContractViolation("\n".join(lines[:10]))
