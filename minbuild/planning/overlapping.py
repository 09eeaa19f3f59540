"""Lists of numbers in one, where parts that several have stand once."""

from __future__ import annotations

from collections.abc import Iterable


def overlapping(lists: Iterable[tuple[int, ...]]) -> tuple[list[int], dict[tuple[int, ...], int]]:
    """All `lists` in one, where each is found at its index; parts that several have stand there once."""
    pool: list[int] = []
    at: dict[tuple[int, ...], int] = {}
    places: dict[int, list[int]] = {}  # of each number in the pool, ascending
    for numbers in sorted(dict.fromkeys(lists), key=len, reverse=True):
        # Whatever stands in the pool stands where its rarest number does, so that no list searches the whole of it.
        rarest = min(range(len(numbers)), key=lambda i: len(places.get(numbers[i], ())), default=0)
        starts = (i - rarest for i in places.get(numbers[rarest], ())) if numbers else iter((0,))
        place = next((i for i in starts if i >= 0 and tuple(pool[i : i + len(numbers)]) == numbers), None)
        if place is None:
            ends = (n for n in range(min(len(numbers), len(pool)), 0, -1) if tuple(pool[-n:]) == numbers[:n])
            shared = next(ends, 0)
            place = len(pool) - shared
            for i, number in enumerate(numbers[shared:], len(pool)):
                pool.append(number)
                places.setdefault(number, []).append(i)
        at[numbers] = place
    return pool, at
