"""Amounts: the sizes and places of a plan as a product with the one free dimension, plus a number.

Every expression of the plan is brought to this form. A place on top of others may be an upper bound: roundings of each
are then counted as if all were needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from minbuild.errors import Unsupported
from minbuild.ir import ElementType
from minbuild.planning.plan_encoding import EXPRESSIONS

CURE = "Build it with --flavor interpreted, or fix dimensions with --dim."

_MOST = 0x7FFFFFEF  # of what a size may be


@dataclass(frozen=True, slots=True, order=True)
class Amount:
    """`free` times the symbol, and `fixed`. `exact` is False for what is only an upper bound."""

    free: int
    fixed: int
    exact: bool = True

    def at(self, symbol: int) -> int:
        """The value, not rounded."""
        return self.free * symbol + self.fixed


class AmountTable:
    """Amounts of a kind by index: products with the symbol stand first."""

    def __init__(self, amounts: Iterable[Amount]) -> None:
        self.entries = sorted(set(amounts), key=lambda a: (a.free == 0, a.fixed == 0, a))
        self.index = {amount: i for i, amount in enumerate(self.entries)}


def place_of(amount: Amount) -> Amount:
    """A place, which is rounded up to 16 anyway."""
    return Amount(amount.free, -(-amount.fixed // 16) * 16)


def largest_symbol(kept: int, peak: Amount, shapes: Iterable[tuple[Sequence[Amount], int]]) -> int:
    """The largest size of the free dimension for which everything can be counted in 31 bits. `kept` are the bytes
    beside temporaries, `peak` those of temporaries, `shapes` those of tensors with the numbers of element types."""
    low, high, shapes = 0, 0x7FFFFFFF, list(shapes)
    while low < high:
        size = (low + high + 1) // 2
        fits = kept + peak.at(size) + 16 <= _MOST and all(
            prod(amount.at(size) for amount in shape) * (ElementType(element).size if element else 1) <= _MOST
            for shape, element in shapes
        )
        low, high = (size, high) if fits else (low, size - 1)
    return low


def amounts_of(expressions: Sequence[tuple[int, int, int]]) -> list[Amount]:
    """Every expression as an amount. Raises Unsupported for what has no such form."""
    found: list[Amount] = []
    for a, b, op in expressions:
        name = EXPRESSIONS[op]
        if name in ("Constant", "Symbol"):
            found.append(Amount(0, a) if name == "Constant" else Amount(1, 0))
            continue
        found.append(operation(name, found[a], found[b]))
    return found


def operation(name: str, a: Amount, b: Amount) -> Amount:
    """The least that a plan's operator makes of two amounts. `name` is one of EXPRESSIONS, `a` and `b` are its
    operands. Raises Unsupported where that is no amount."""
    exact = a.exact and b.exact
    if name == "Stack":  # a place on top of b bytes at the place a; each product is rounded by itself
        rounded = -(-b.fixed // 16) * 16
        both = a.free % 16 != 0 and b.free % 16 != 0
        return Amount(a.free + b.free, a.fixed + rounded + 16 * both, False)
    if name == "Add":
        return Amount(a.free + b.free, a.fixed + b.fixed, exact)
    if name == "Multiply" and not (a.free and b.free):
        factor, other = (a, b) if not a.free else (b, a)
        return Amount(factor.fixed * other.free, factor.fixed * other.fixed, exact)
    if name == "Max":
        same = exact and (a.free == b.free or a.fixed == b.fixed)
        return Amount(max(a.free, b.free), max(a.fixed, b.fixed), same)
    if name == "Min":
        return Amount(*min((a.free, a.fixed), (b.free, b.fixed)), exact and a == b)
    if name == "Divide" and b.fixed > 0 and not b.free:
        whole = a.free % b.fixed == 0 and a.fixed % b.fixed == 0
        return Amount(-(-a.free // b.fixed), -(-a.fixed // b.fixed), exact and whole)
    raise Unsupported([f"--flavor compiled: a size is no product with the free dimension. {CURE}"])
