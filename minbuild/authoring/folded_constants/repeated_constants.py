"""Constants that an exporter computed of one parameter by repeating parts of it or by reading rows of a table: the
parameter, and the nodes that give the constant."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

_REPEATS = frozenset(("broadcast_to", "expand", "expand_as", "repeat", "tile"))
_READS = frozenset(("embedding", "index", "index_select"))
_Step = tuple[str, tuple[int, ...] | np.ndarray]  # an operator, and its second input or its order of axes


@dataclass(frozen=True)
class Repeated:
    """`steps` that make a constant of `parameter`, the first to be applied first; `is_table` where its rows are those
    of a table that the constant has, in the order in which they occur."""

    parameter: np.ndarray
    steps: tuple[_Step, ...]
    is_table: bool


def repeated_part(
    constant: np.ndarray, stem: str, between: Collection[str], layout: Collection[str]
) -> Repeated | None:
    """The parameter that `constant` was made of by function `stem` of values that functions `between` made; None where
    the names do not show it, or where equal elements may be so by chance. Functions in `layout` change no element."""
    known = {stem, *between} - set(layout)
    if stem not in _REPEATS | _READS | set(layout) or constant.ndim < 2 or not np.ptp(constant):
        return None
    if known & _READS:
        return _of_table(constant)
    return _of_one(constant) if known and known <= _REPEATS else None


def _of_one(constant: np.ndarray) -> Repeated | None:
    """One element along each axis that repeats it."""
    found = constant
    for axis in range(constant.ndim):
        first = found.take([0], axis)
        found = first if (found == first).all() else found
    if found.size == constant.size or not np.ptp(found):
        return None
    return Repeated(found.copy(), (("Expand", constant.shape),), False)


def _of_table(constant: np.ndarray) -> Repeated | None:
    """Rows along the axis that gives the smallest table, the last of those."""
    tables = [(axis, *_rows(constant, axis)) for axis in range(constant.ndim)]
    axis, table, index = min(tables, key=lambda each: (each[1].size, -each[0]))
    counts = np.bincount(index.ravel())
    if table.shape[1] < 2 or not np.ptp(table[counts > 1], axis=1).all():
        return None
    steps: list[_Step] = []
    if (index.ravel() == np.arange(index.size)).all():
        steps.append(("Reshape", (*index.shape, table.shape[1])))
    else:
        steps.append(("Gather", index))
    if axis != constant.ndim - 1:
        order = list(range(constant.ndim - 1))
        order.insert(axis, constant.ndim - 1)
        steps.append(("Transpose", tuple(order)))
    return Repeated(table, tuple(steps), True)


def _rows(constant: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The different vectors along `axis`, as rows in the order in which they occur, and where each stands."""
    moved = np.moveaxis(constant, axis, -1)
    flat: Any = moved.reshape(-1, moved.shape[-1])
    _, first, inverse = np.unique(flat, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return flat[first[order]].copy(), rank[inverse.ravel()].reshape(moved.shape[:-1])
