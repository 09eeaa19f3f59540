"""Tensors that are no parameters by what they hold, or parameters written several times, in files that do not say what
is one. Of most tensors a few numbers suffice to see that they are neither; all are read of the others only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from minbuild.ir import Graph

_HIDES = -1e4  # what masks add to a score at most
_CLOSE = 1e-5
_SAMPLES = 64  # about as many numbers of a tensor are looked at first


def likely_constants(graph: Graph, train: Sequence[str]) -> tuple[str, ...]:
    """Of the initializers `train` of `graph`: masks of zeros and of numbers that hide, and pairs of cosines and sines
    of the same angles, as rotary embeddings have them."""
    arrays = {n: graph.initializers[n] for n in train if graph.initializers[n].dtype.kind == "f"}
    found = {n for n, a in arrays.items() if _is_mask(a)}
    found |= set(_angles({n: a for n, a in arrays.items() if a.ndim > 1 and a.size}))
    return tuple(n for n in train if n in found)


def likely_repeated(graph: Graph, train: Sequence[str]) -> tuple[str, ...]:
    """Of the initializers `train` of `graph`: those that hold the same numbers for each place of their first axis, as a
    class token does that was written once for each sample."""
    arrays = ((n, graph.initializers[n]) for n in train)
    several = ((n, a) for n, a in arrays if a.ndim > 1 and len(a) > 1 and a.size)
    return tuple(n for n, a in several if (a[1] == a[0]).all() and np.ptp(a[0]) and (a == a[:1]).all())


def _samples(array: np.ndarray) -> np.ndarray:
    """Some numbers of `array`, at equal distances; all, where there are few."""
    return array.flat[:: max(1, array.size // _SAMPLES)]


def _is_mask(array: np.ndarray) -> bool:
    for part in (_samples(array), array):
        hidden = part <= _HIDES
        if part[~hidden].any():
            return False
    return bool(hidden.any() and not hidden.all())


def _angles(arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """The names of cosines and sines of the same angles, which are not all 0."""
    for one, other in _possible_angles(arrays):
        pair = arrays[one], arrays[other]
        if all(np.abs(a).max() <= 1 and np.ptp(a) for a in pair) and _are_angles(*map(_squares, pair)):
            yield from (one, other)


def _possible_angles(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str]]:
    """The names of two of `arrays`, of one shape, that may be cosines and sines by some of their numbers. Sorted by the
    mean of these squared, the second stands where it adds up to 1 with the first: few are compared with each other."""
    by_shape: dict[tuple[int, ...], list[tuple[float, str, np.ndarray]]] = {}
    for name, array in arrays.items():
        squares = _squares(_samples(array))
        if squares.max() <= 1:
            by_shape.setdefault(array.shape, []).append((float(squares.mean()), name, squares))
    for group in by_shape.values():
        group.sort(key=lambda each: each[:2])
        for place, (mean, one, x) in enumerate(group):
            start = bisect_left(group, 1 - mean - 2 * _CLOSE, place + 1, key=lambda each: each[0])
            for behind in range(start, len(group)):
                other_mean, other, y = group[behind]
                if other_mean > 1 - mean + 2 * _CLOSE:
                    break
                if _are_angles(x, y):
                    yield one, other


def _squares(array: np.ndarray) -> np.ndarray:
    return np.square(array, dtype=np.float64)


def _are_angles(x: np.ndarray, y: np.ndarray) -> bool:
    """Check squares of cosines and sines."""
    return bool(np.abs(x + y - 1).max() < _CLOSE)
