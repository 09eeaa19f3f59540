"""Tensors that are no parameters by what they hold, or parameters written several times, in files that do not say what
is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from minbuild.ir import Graph

_HIDES = -1e4  # what masks add to a score at most
_CLOSE = 1e-5


def likely_constants(graph: Graph, train: Sequence[str]) -> tuple[str, ...]:
    """Of the initializers `train` of `graph`: masks of zeros and of numbers that hide, and pairs of cosines and sines
    of the same angles, as rotary embeddings have them."""
    arrays = {n: graph.initializers[n] for n in train if graph.initializers[n].dtype.kind == "f"}
    found = {n for n, a in arrays.items() if _is_mask(a)}
    found |= set(_angles({n: a for n, a in arrays.items() if a.ndim > 1 and np.abs(a).max(initial=0) <= 1}))
    return tuple(n for n in train if n in found)


def likely_repeated(graph: Graph, train: Sequence[str]) -> tuple[str, ...]:
    """Of the initializers `train` of `graph`: those that hold the same numbers for each place of their first axis, as a
    class token does that was written once for each sample."""
    arrays = ((n, graph.initializers[n]) for n in train)
    return tuple(n for n, a in arrays if a.ndim > 1 and len(a) > 1 and np.ptp(a[0]) and (a == a[:1]).all())


def _is_mask(array: np.ndarray) -> bool:
    hidden = array <= _HIDES
    return bool(hidden.any() and not hidden.all() and not array[~hidden].any())


def _angles(arrays: dict[str, np.ndarray]) -> Iterator[str]:
    """The names of cosines and sines of the same angles, which are not all 0."""
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, array in arrays.items():
        by_shape.setdefault(array.shape, []).append(name)
    for names in by_shape.values():
        for i, one in enumerate(names):
            for other in names[i + 1 :]:
                x, y = (arrays[n].astype(np.float64) for n in (one, other))
                if np.ptp(x) and np.ptp(y) and np.abs(x * x + y * y - 1).max() < _CLOSE:
                    yield from (one, other)
