"""Sizes that decisions go by: every free dimension at a few representative values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from minbuild.ir import TensorType, Value
from minbuild.ir.dims import Dim, evaluate, product, symbols_in

PLANNED_SIZES = (1, 8, 32)  # of every free dimension: the arena layout is chosen for these


def planned_bytes(values: Iterable[Value], given: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
    """Bytes of each value, by name, with free dimensions at the largest planned size, those in `given` at that."""
    sizes = tuple(sorted(given.items()))
    found: dict[str, int] = {}
    bytes_of: dict[int, tuple[TensorType, int]] = {}  # by the type's identity: most values share one
    for value in values:
        known = bytes_of.get(id(value.type))
        if known is None:
            kind = value.type
            known = kind, planned_size(product(kind.shape or ()) * kind.element.size, sizes)
            bytes_of[id(kind)] = known
        found[value.name] = known[1]
    return found


@lru_cache(maxsize=1 << 16)
def planned_size(dim: Dim, given: tuple[tuple[str, int], ...] = ()) -> int:
    """A dimension with its symbols at the largest planned size, or at what is `given` for them."""
    return evaluate(dim, dict.fromkeys(symbols_in(dim), PLANNED_SIZES[-1]) | dict(given))
