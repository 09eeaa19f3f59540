"""Normalised weights, g v / |v|, out of an exporter's file: the axes of the norm follow from the shape of g where the
file has it, else from the values that the weight was computed of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

_PAIRS = (
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)
_NORM = frozenset({"linalg_vector_norm", "div"})
_MOVED = frozenset(
    {"clone", "transpose", "view"}
)  # where the lengths are along an axis between the first and the last
_WITHOUT_AXES = 2  # constants of a norm over all axes; one over some reads those, too


@dataclass(frozen=True)
class NormAxes:
    """The axes of a norm, `dim` as torch calls the others, and True where others have the same file."""

    axes: tuple[int, ...]
    dim: int | None
    open: bool


def weight_norm_pair(parameters: Sequence[str]) -> tuple[str, str] | None:
    """The names of length and direction, if the two `parameters` are those of a normalised weight."""
    for length, direction in _PAIRS:
        for one, other in (parameters, reversed(parameters)):
            if one.endswith(length) and other == one.removesuffix(length) + direction:
                return one, other
    return None


def norm_axes(rank: int, stems: Collection[str], numbers: int, length: np.ndarray | None) -> NormAxes | None:
    """The axes of the norm of a weight of `rank` axes that was computed by the functions `stems` of `numbers`
    constants, beside its direction and its `length`, which is None where the file does not hold it. None for other
    functions."""
    if length is not None:
        long = [axis for axis, size in enumerate(length.shape) if size > 1]
        if length.ndim not in (0, rank) or len(long) > 1:
            return None
        return _along(long[0] if long else None, rank, open=False)
    if stems == _NORM | _MOVED and rank > 2:
        return _along(1, rank, open=rank > 3)
    if stems != _NORM:
        return None
    return _along(None, rank, open=False) if numbers == _WITHOUT_AXES else _along(0, rank, open=True)


def _along(dim: int | None, rank: int, open: bool) -> NormAxes:  # noqa: A002
    return NormAxes(tuple(axis for axis in range(rank) if axis != dim), dim, open)


def dims_note(found: Sequence[tuple[str, NormAxes]]) -> str:
    """A sentence for users on directions, by name, of weights whose lengths are not in the file."""
    groups: dict[str, list[str]] = {}
    for name, norm in found:
        others = "the last dim" if norm.dim == 0 else "other dims between the first and the last"
        dims = f"dim={norm.dim}{f', which it does not tell from {others}' if norm.open else ''}"
        groups.setdefault(dims, []).append(name)
    listed = ", ".join(f"{', '.join(names)} ({dims})" for dims, names in groups.items())
    return (
        f"{listed}: directions of normalised weights, whose lengths the file does not tell; they begin as the weights. "
        "Export with optimize=False to keep them, and their dim."
    )
