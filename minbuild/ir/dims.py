"""Dimensions as exact integer expressions over symbols such as `batch`.

A dimension is an `int` or a `Poly`: a sum of integer multiples of products of atoms, kept canonical so that equal
dimensions compare equal. Atoms are symbols or quotients (`Quotient`) that do not divide exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import mul

LARGEST_SIZE = 2**31 - 1  # of a dimension: devices count with 32 bits
_NO_SYMBOLS = frozenset[str]()


@dataclass(frozen=True, slots=True, order=True)
class Symbol:
    """A free dimension: known to the device only when the inputs arrive."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Quotient:
    """floor(numerator / denominator) where the division is not exact."""

    numerator: Dim
    denominator: Dim

    def __str__(self) -> str:
        return f"floor(({self.numerator}) / ({self.denominator}))"


@dataclass(frozen=True, slots=True)
class Extremum:
    """max or min of two dimensions whose order is not known."""

    kind: str  # "max" or "min"
    left: Dim
    right: Dim

    def __str__(self) -> str:
        return f"{self.kind}({self.left}, {self.right})"


Atom = Symbol | Quotient | Extremum
Monomial = tuple[Atom, ...]  # sorted by text, with repetition; () is the constant term


@dataclass(frozen=True, slots=True)
class Poly:
    """Sum of coefficient * monomial, sorted; never a plain constant (that is an int)."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Dim) -> Dim:
        total = dict(self.terms)
        for monomial, coefficient in terms_of(other):
            total[monomial] = total.get(monomial, 0) + coefficient
        return _poly(total)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return self * -1 + other

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, Poly):  # most are: nothing moves
            scale = int(other)
            return Poly(tuple((m, c * scale) for m, c in self.terms)) if scale else 0
        total: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in terms_of(other):
                key = tuple(sorted(left + right, key=str))
                total[key] = total.get(key, 0) + a * b
        return _poly(total)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        exact = divide_exactly(self, other)
        return symbol_of(Quotient(self, other)) if exact is None else exact

    def __rfloordiv__(self, other: int) -> Dim:
        return 0 if other == 0 else symbol_of(Quotient(other, self))

    def __str__(self) -> str:
        parts = []
        for monomial, coefficient in self.terms:
            factors = [str(a) for a in monomial]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return " + ".join(parts)

    __repr__ = __str__


Dim = int | Poly


def symbol(name: str) -> Poly:
    """The free dimension `name`."""
    return symbol_of(Symbol(name))


def symbol_of(atom: Atom) -> Poly:
    return Poly((((atom,), 1),))


def terms_of(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    """The terms of the sum: a product of atoms and its coefficient each."""
    return dim.terms if isinstance(dim, Poly) else (((), int(dim)),)


def _poly(terms: Mapping[Monomial, int]) -> Dim:
    kept = tuple(sorted(((m, c) for m, c in terms.items() if c), key=lambda t: (-len(t[0]), str(t[0]))))
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    return Poly(kept)


def divide_exactly(numerator: Dim, denominator: Dim) -> Dim | None:
    """numerator / denominator when every term divides, else None. The divisor must be a single term."""
    divisor = terms_of(denominator)
    if numerator == denominator:
        return 1
    if len(divisor) != 1 or divisor[0][1] == 0:
        return None
    (atoms, coefficient), result = divisor[0], {}
    for monomial, c in terms_of(numerator):
        rest = list(monomial)
        for atom in atoms:
            if atom not in rest:
                return None
            rest.remove(atom)
        if c % coefficient:
            return None
        result[tuple(rest)] = c // coefficient
    return _poly(result)


def ceil_div(numerator: Dim, denominator: int) -> Dim:
    """ceil(numerator / denominator)."""
    return (numerator + (denominator - 1)) // denominator


def round_up(dim: Dim, unit: int) -> Dim:
    """The next multiple of `unit`."""
    return dim if divide_exactly(dim, unit) is not None else ceil_div(dim, unit) * unit


def dim_max(left: Dim, right: Dim) -> Dim:
    return _extremum("max", left, right)


def dim_min(left: Dim, right: Dim) -> Dim:
    return _extremum("min", left, right)


def _extremum(kind: str, left: Dim, right: Dim) -> Dim:
    if left == right:
        return left
    for one, other in ((left, right), (right, left)):
        # Exporters write the largest integer for an open end; no size reaches it.
        if isinstance(one, int) and one >= LARGEST_SIZE and isinstance(other, Poly):
            return other if kind == "min" else one
    difference = left - right
    if never_negative(difference):
        return left if kind == "max" else right
    if never_negative(-difference):
        return right if kind == "max" else left
    return symbol_of(Extremum(kind, left, right))


def never_negative(dim: Dim) -> bool:
    """True if `dim` can be seen to be 0 or more; free dimensions are 1 or more."""
    if not isinstance(dim, Poly):
        return dim >= 0
    terms = dict(dim.terms)
    constant = terms.pop((), 0)
    sure = all(c > 0 and all(isinstance(a, Symbol) for a in m) for m, c in terms.items())
    return sure and sum(terms.values()) + constant >= 0


def product(dims: tuple[Dim, ...] | list[Dim]) -> Dim:
    """Number of elements of a shape; 1 for a scalar."""
    return _product(tuple(dims))


@lru_cache(maxsize=1 << 16)  # passes ask for the same few shapes again and again
def _product(dims: tuple[Dim, ...]) -> Dim:
    return reduce(mul, dims, 1)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The number `dim` stands for under `values` (symbol name -> size)."""

    if not isinstance(dim, Poly):
        return int(dim)

    def atom(a: Quotient | Extremum) -> int:
        if isinstance(a, Quotient):
            return evaluate(a.numerator, values) // evaluate(a.denominator, values)
        pick: Callable[[int, int], int] = max if a.kind == "max" else min
        return pick(evaluate(a.left, values), evaluate(a.right, values))

    total = 0
    for monomial, coefficient in dim.terms:
        for each in monomial:
            coefficient *= values[each.name] if isinstance(each, Symbol) else atom(each)
        total += coefficient
    return total


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """`dim` with the symbols in `values` fixed."""

    def atom(a: Atom) -> Dim:
        if isinstance(a, Symbol):
            return values.get(a.name, symbol(a.name))
        if isinstance(a, Quotient):
            return substitute(a.numerator, values) // substitute(a.denominator, values)
        return _extremum(a.kind, substitute(a.left, values), substitute(a.right, values))

    total: Dim = 0
    for monomial, coefficient in terms_of(dim):
        total = total + product([atom(a) for a in monomial]) * coefficient
    return total


def symbols_in(dim: Dim) -> frozenset[str]:
    """Names of all symbols `dim` depends on."""
    if not isinstance(dim, Poly):
        return _NO_SYMBOLS
    names: set[str] = set()
    for monomial, _ in dim.terms:
        for a in monomial:
            if isinstance(a, Symbol):
                names.add(a.name)
            elif isinstance(a, Quotient):
                names |= symbols_in(a.numerator) | symbols_in(a.denominator)
            else:
                names |= symbols_in(a.left) | symbols_in(a.right)
    return frozenset(names)
