"""Free dimensions that must be the same size for a graph to make sense, under whatever names its inputs have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from minbuild.ir import Procedure
from minbuild.ir.dims import Dim, Poly, symbol, symbols_in

# Operators with a label for every row of scores: input 1 has the axes of input 0 but for the classes, which are axis 1.
_LABELLED = frozenset(
    (
        ":SoftmaxCrossEntropyLoss",
        ":NegativeLogLikelihoodLoss",
        "com.microsoft:SoftmaxCrossEntropyLossInternal",
    )
)


def equal_sizes(procedure: Procedure) -> dict[str, Dim]:
    """What free dimensions must be, by name, in terms of the others: `tokens` is `32*batch`."""
    return solved(_pairs(procedure))


def solved(pairs: Iterable[tuple[Dim, Dim]]) -> dict[str, Dim]:
    """Free dimensions, by name, so that the sizes of each pair are equal, as far as one of them is nothing else."""
    found: dict[str, Dim] = {}
    for left, right in pairs:
        name, size = (_name(right), left) if _name(right) else (_name(left), right)
        if left != right and name and name not in symbols_in(size) and not symbols_in(size) & set(found):
            found.setdefault(name, size)
    return found


def _pairs(procedure: Procedure) -> Iterator[tuple[Dim, Dim]]:
    for call in procedure.calls:
        if call.op in _LABELLED:
            scores, labels = (procedure.values[name].type.shape or () for name in call.inputs[:2])
            yield from zip((*scores[:1], *scores[2:]), labels, strict=False)


def _name(dim: Dim) -> str:
    """The name of a dimension that is nothing but a free one."""
    names = symbols_in(dim)
    name = next(iter(names), "")
    return name if isinstance(dim, Poly) and len(names) == 1 and dim == symbol(name) else ""
