"""An order of calls in which one call can be moved without renumbering the others."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf


class Schedule:
    """The numbers 0 to `count` - 1 in an order that starts ascending. `key` is a number that grows along the order: a
    linked list keeps neighbours, and keys between two neighbours are made by halving, so that a move costs a constant
    number of operations; where no number is left between two keys, all of them are spread anew."""

    def __init__(self, count: int) -> None:
        self._next = [*range(1, count + 1), 0]  # at `count` stands the head of the circle
        self._previous = [count, *range(count)]
        self._key = [float(i) for i in range(count)]
        self._head = count

    def __iter__(self) -> Iterator[int]:
        each = self._next[self._head]
        while each != self._head:
            yield each
            each = self._next[each]

    def key(self, each: int) -> float:
        """A number by which `each` compares with the others."""
        return self._key[each]

    def key_behind(self, each: int, count: int) -> float:
        """The key of what stands `count` places behind `each`; infinite behind the end."""
        for _ in range(count):
            each = self._next[each]
            if each == self._head:
                return inf
        return self._key[each]

    def previous(self, each: int) -> int | None:
        """The call right before `each`."""
        found = self._previous[each]
        return None if found == self._head else found

    def move_before(self, each: int, other: int) -> None:
        """Puts `each` right before `other`, a different one."""
        following, preceding = self._next, self._previous
        following[preceding[each]], preceding[following[each]] = following[each], preceding[each]
        before = preceding[other]
        following[before], preceding[each], following[each], preceding[other] = each, before, other, each
        low = self._key[other] - 1.0 if before == self._head else self._key[before]
        middle = (low + self._key[other]) / 2
        if low < middle < self._key[other]:
            self._key[each] = middle
        else:
            for position, member in enumerate(self):
                self._key[member] = float(position)
