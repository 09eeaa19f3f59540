"""Rewrites that an operator brings along: a pattern of calls, and the call that replaces them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from minbuild.ir import Call, TensorType
from minbuild.ops.core.definition import Op

# A tree of calls: ("Mul", "dy", ("Cast", "mask")) is a Mul of any value, which the rule calls `dy`, with the
# result of a Cast. Operators of another domain are written "domain:Name". A name that comes twice must be the
# same value both times.
Pattern = Union[str, tuple["Pattern", ...]]  # noqa: UP007  a name cannot refer to itself in X | Y
COMMUTATIVE = frozenset({":Add", ":Mul", ":And", ":Or"})  # their operands match in either order


@dataclass(frozen=True)
class Match:
    """A place where a pattern was found: the value of each name, its type and, if constant, its contents."""

    names: Mapping[str, str]
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]
    calls: tuple[Call, ...]  # all matched ones in order; the result of the last is replaced
    result: TensorType

    def number(self, name: str) -> float | None:
        """The only element of a constant."""
        array = self.constants.get(name)
        return array.item() if array is not None and array.size == 1 and array.dtype != object else None

    def attributes(self, op: str) -> Mapping[str, Any]:
        """Those of the first matched call of `op`."""
        return next(call.attributes for call in self.calls if call.op == op)


@dataclass(frozen=True)
class Replacement:
    """The one call that takes the place of all matched ones."""

    op: str  # "domain:Name"
    inputs: tuple[str, ...]  # names of the pattern
    attributes: Mapping[str, Any]


def identity(match: Match) -> Replacement | None:
    """For `Rewrite.build`: operand `x` itself where the result is of its type, so that the operator changes nothing."""
    return Replacement(":Identity", ("x",), {}) if match.types["x"] == match.result else None


@dataclass(frozen=True)
class Rewrite:
    """`build` returns the replacement of a match, or None to leave it alone. It may assume that nothing
    else reads what the inner calls produce. A `shared` one is for programs that have a kernel of its operator anyway,
    such as evaluations whose training step has it: elsewhere that kernel would make libraries larger."""

    pattern: Pattern
    build: Callable[[Match], Replacement | None]
    shared: bool = False


@dataclass(frozen=True)
class RewritingOp(Op):
    """An operator that brings rewrites along."""

    rewrites: tuple[Rewrite, ...] = ()
