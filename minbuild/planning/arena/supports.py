"""Supports: the buffers on which each buffer of an arena may rest, for every value of the symbols.

The device gives a buffer the largest end of all earlier buffers that are live together with it. An earlier buffer that
itself lies below another of these is never the largest and is left out. Buffers over the steps of their lifespans, put
down in placement order, form a planar graph of who touches whom from above; in such a graph "lies below", directly or
not, is a partial order of dimension two: a buffer lies below another exactly if it comes first both in the topological
order that goes left first and in the one that goes right first. That takes n log n instead of sets of everything below.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from minbuild.ir import Buffer


def supports_of(buffers: Sequence[Buffer]) -> tuple[list[list[int]], list[int]]:
    """For each buffer, in placement order, the earlier buffers it may rest on; and those that nothing rests on, which
    are as high as the arena may be. Positions in `buffers`, ascending."""
    touching, above, visible = _contacts(buffers)
    left_first, right_first = _topological_ranks(above, False), _topological_ranks(above, True)

    def maximal(chosen: Iterable[int]) -> list[int]:
        """Of `chosen` those that lie below no other of them."""
        kept: list[int] = []
        highest = -1
        for i in sorted(chosen, key=left_first.__getitem__, reverse=True):
            if right_first[i] > highest:
                highest = right_first[i]
                kept.append(i)
        return sorted(kept)

    return [maximal(below) for below in touching], maximal(visible)


def _contacts(buffers: Sequence[Buffer]) -> tuple[list[set[int]], list[list[int]], set[int]]:
    """For each buffer those directly below it; for each, and last for the floor, those directly above it from left to
    right; and those visible from above in the end. The skyline is a list of segments: each begins at a step and shows
    one buffer or the floor."""
    floor = len(buffers)
    starts, shown = [min((b.first for b in buffers), default=0)], [floor]
    end = max((b.last for b in buffers), default=0) + 1
    touching: list[set[int]] = []
    contacts: list[list[tuple[int, int]]] = [[] for _ in range(floor + 1)]  # step and buffer
    for i, buffer in enumerate(buffers):
        begin, stop = buffer.first, buffer.last + 1
        low, high = bisect_right(starts, begin) - 1, bisect_left(starts, stop)
        below = shown[low:high]
        for k in range(low, high):
            contacts[shown[k]].append((max(begin, starts[k]), i))
        touching.append(set(below) - {floor})
        left = starts[low] < begin
        right = stop < (starts[high] if high < len(starts) else end)
        starts[low:high] = [starts[low]] * left + [begin] + [stop] * right
        shown[low:high] = below[:1] * left + [i] + below[-1:] * right
    return touching, [[i for _, i in sorted(found)] for found in contacts], set(shown) - {floor}


def _topological_ranks(above: Sequence[Sequence[int]], right_first: bool) -> list[int]:
    """The place of each buffer in the topological order that goes left first, or right first: a depth-first search from
    the floor, which stands last in `above`, backwards."""
    floor = len(above) - 1
    rank = [-1] * floor
    found = [False] * len(above)
    place = floor
    pending = [(floor, iter(above[floor] if right_first else above[floor][::-1]))]
    while pending:
        each, rest = pending[-1]
        following = next((i for i in rest if not found[i]), None)
        if following is not None:
            found[following] = True
            pending.append((following, iter(above[following] if right_first else above[following][::-1])))
            continue
        pending.pop()
        if each != floor:
            place -= 1
            rank[each] = place
    return rank
