"""Symbol unification: free dimensions that must have a certain size, or the same as another, for a graph to be valid.

Exporters name every dimension of an input, also those that a weight, a constant or a reshape fixes. Lowering collects
the pairs of sizes that operators need equal; here they are solved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from minbuild.ir import Procedure, Value
from minbuild.ir.dims import Dim, Monomial, Poly, divide_exactly, substitute, symbol, symbols_in, terms_of

# Operators with a label for every row of scores: input 1 has the axes of input 0 but for the classes, which are axis 1.
_LABELLED = frozenset(
    (
        ":SoftmaxCrossEntropyLoss",
        ":NegativeLogLikelihoodLoss",
        "com.microsoft:SoftmaxCrossEntropyLossInternal",
    )
)


@dataclass
class SymbolUnification:
    """Free dimensions, by name, in terms of the others: `tokens` is `32*batch`, because node `where` needs it.

    `pairs` grows while a graph is lowered: (size, size it should be equal to, node that needs it).
    """

    sizes: dict[str, Dim] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)  # symbol -> node; none for sizes that a user fixed
    pairs: list[tuple[Dim, Dim, str]] = field(default_factory=list)

    def add(self, left: Dim, right: Dim, where: str) -> None:
        """Notes that the sizes `left` and `right` must be equal, unless both are numbers, which nothing can make equal.
        `where` is the node that demands it, for messages."""
        if isinstance(left, Poly) or isinstance(right, Poly):
            self.pairs.append((left, right, where))

    def solve(self) -> bool:
        """Solves the pairs collected since the last call. Returns whether any symbol was solved: then the graph must be
        lowered again with `sizes`."""
        pairs, self.pairs = self.pairs, []
        before = len(self.sizes)
        for left, right, where in pairs:
            found = _solution(substitute(left, self.sizes), substitute(right, self.sizes))
            if found is not None:
                name, size = found
                self.sizes = {n: substitute(d, {name: size}) for n, d in self.sizes.items()} | {name: size}
                self.where[name] = where
        return len(self.sizes) > before

    def explanation(self, sizes: Iterable[Dim]) -> str:
        """Sentences about the symbols that became one of `sizes`, for the report of a conflict."""
        numbers = {d for d in sizes if isinstance(d, int)}
        told = []
        for name, size in self.sizes.items():
            if size in numbers and name in self.where:
                told.append(f"; '{name}' is {size} because {self.where[name]} requires it")
            elif size in numbers:
                told.append(f"; '{name}' was fixed to {size}. Leave it free, or give it the other size")
        return "".join(told)


def labelled_pairs(procedure: Procedure) -> Iterator[tuple[Dim, Dim, str]]:
    """Sizes of scores and of their labels, which no shape rule compares."""
    for call in procedure.calls:
        if call.op in _LABELLED and len(call.inputs) > 1:
            scores, labels = (_shape(procedure.values, name) for name in call.inputs[:2])
            for left, right in zip((*scores[:1], *scores[2:]), labels, strict=False):
                yield left, right, f"node '{call.node}'"


def _shape(values: Mapping[str, Value], name: str) -> tuple[Dim, ...]:
    return values[name].type.shape or ()


def _solution(left: Dim, right: Dim) -> tuple[str, Dim] | None:
    """A symbol and its size, so that left and right are equal; None where there is no such symbol."""
    if left == right:
        return None
    for name, size in ((_name(right), left), (_name(left), right)):
        if name and name not in symbols_in(size) and (not isinstance(size, int) or size > 0):
            return name, size
    return _linear_solution(left - right)


def _name(dim: Dim) -> str:
    """The name of a dimension that is nothing but a free one."""
    names = symbols_in(dim)
    name = next(iter(names), "")
    return name if isinstance(dim, Poly) and len(names) == 1 and dim == symbol(name) else ""


def _linear_solution(zero: Dim) -> tuple[str, Dim] | None:
    """A symbol that occurs once, in a term of its own, and the number that makes the expression zero. Sizes are
    positive, so what all terms have in common is divided out: batch*features - 6*batch gives features = 6."""
    for monomial, _ in terms_of(zero):
        for atom in monomial:
            shared = divide_exactly(zero, Poly((((atom,), 1),)))
            if shared is not None:
                return _linear_solution(shared)
    terms: dict[Monomial, int] = dict(terms_of(zero))
    for monomial, factor in terms.items():
        name = _name(Poly(((monomial, 1),))) if monomial else ""
        rest = Poly(((monomial, factor),)) - zero if name else 0
        if name and name not in symbols_in(rest):
            size = divide_exactly(rest, factor)
            if isinstance(size, int) and size > 0:
                return name, size
    return None
