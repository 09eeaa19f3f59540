"""The requirements of a reduced build of ONNX Runtime: operators by domain and opset, with their element types."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Places = Mapping[tuple[str, int], frozenset[str]]  # ("inputs", 0) -> names of types


@dataclass(frozen=True)
class Types:
    """Element types of an operator, by ONNX Runtime's names. `places` are for single inputs and outputs, `triples`
    combinations that belong together (OneHot). Empty: every type."""

    places: Places = field(default_factory=dict)
    triples: frozenset[tuple[str, ...]] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.places or self.triples)

    def __or__(self, other: Types) -> Types:
        """The union of both."""
        places: dict[tuple[str, int], frozenset[str]] = dict(self.places)
        for place, names in other.places.items():
            places[place] = places.get(place, frozenset()) | names
        return Types(places, self.triples | other.triples)

    @property
    def names(self) -> frozenset[str]:
        """Every type, wherever it stands."""
        placed = (name for names in self.places.values() for name in names)
        return frozenset(placed) | {name for triple in self.triples for name in triple}


Operators = Mapping[tuple[str, int, str], Types]  # domain ("ai.onnx" for ONNX's own), opset, operator


@dataclass(frozen=True)
class Requirements:
    """All operators a build needs. `allowed` bounds the types of all of them; `everything` means that nothing may be
    left out."""

    operators: Operators
    allowed: frozenset[str] | None = None
    everything: bool = False

    def types_of(self, domain: str, name: str) -> Types:
        """The types of an operator over all its opsets, as a build that does not distinguish opsets must have them."""
        return unite(types for (d, _, n), types in self.operators.items() if (d, n) == (domain, name))


def unite(types: Iterable[Types]) -> Types:
    """The union of several requirements. One without types needs every type, and so do all."""
    result = Types()
    for number, each in enumerate(types):
        if number and bool(each) != bool(result):
            return Types()
        result = result | each
    return result


def union(all_of: Iterable[Requirements]) -> Requirements:
    """The requirements of several models together."""
    merged: dict[tuple[str, int, str], list[Types]] = defaultdict(list)
    allowed: frozenset[str] | None = None
    everything = False
    for each in all_of:
        for key, types in each.operators.items():
            merged[key].append(types)
        allowed = each.allowed if allowed is None else allowed | (each.allowed or frozenset())
        everything = everything or each.everything
    return Requirements({k: unite(v) for k, v in sorted(merged.items())}, allowed, everything)
