"""A seeded search that improves a packing by moving the buffers that hold up its peak."""

from __future__ import annotations

import math
import random
from collections import defaultdict

from minbuild.planning.arena.placement import Order, Problem, Score

_SEED = 20240719
_PATIENCE = 3_000  # moves without a better peak before a search gives up
_APART = 16  # positions of an order between those whose heights are kept


class Search:
    """Moves one buffer of a chain that holds up the worst peak; keeps every move that makes nothing worse.

    The peak is the length of a chain of buffers each resting on the one before: only an order that breaks the
    chain can lower it. A move is judged from the first position it changes, and dropped as soon as one buffer ends
    too high. `before[a][k]` are load a's column heights when the buffer at position k * `_APART` comes down, and
    `ends[a]` where its buffers end: heights between are drawn from these, as are those of a move that is accepted.
    Behind a move whose heights are those of before, all ends are. `work` counts buffers as if each were put down.
    """

    def __init__(self, problem: Problem, order: Order) -> None:
        self.problem = problem
        self.random = random.Random(_SEED)
        self.work = 0
        count = len(order)
        self.before = [[[0] * problem.columns] * (count // _APART + 1) for _ in problem.loads]
        self.ends = [[0] * count for _ in problem.loads]
        self.meets: dict[int, list[int]] = {}  # of the buffers asked for: those live together with each
        self.score: Score = (math.inf, math.inf)
        self.evaluate(order, 0, count)
        self.work = 0
        self.accept(order, 0)

    def run(self, budget: int) -> None:
        """Improves `order` until it is at the bound, `budget` is used up, or nothing has helped for long."""
        idle = 0
        while self.score[0] > 1.0 and self.work < budget and idle < _PATIENCE:
            idle += 1
            order, since, stop = self.propose()
            score = self.evaluate(order, since, stop)
            if score is not None and score <= self.score:
                idle = 0 if score < self.score else idle
                self.accept(order, since)

    def accept(self, order: Order, since: int) -> None:
        """Makes `order`, the one evaluated last, the current one: it differs from position `since` on."""
        self.order = order
        self.below: dict[
            int, list[int]
        ] = {}  # of the buffers asked for: what each may rest on in the worst load
        self.position = {i: p for p, i in enumerate(order)}
        for ends, before, tops in zip(self.ends, self.before, self.tops, strict=True):
            height = self._heights(ends, before, since)
            for p, (i, top) in enumerate(zip(order[since:], tops, strict=False), since):
                if not p % _APART:
                    before[p // _APART] = height[:]
                begin, end = self.problem.spans[i]
                ends[i] = top
                height[begin:end] = [top] * (end - begin)
        self.work += (len(order) - since) * len(self.ends)
        ratios = [load.ratio(max(ends)) for load, ends in zip(self.problem.loads, self.ends, strict=True)]
        self.score = (max(ratios), sum(ratios))
        self.worst = ratios.index(self.score[0])
        self.ending: dict[int, list[int]] = defaultdict(list)  # height -> buffers, in the worst load
        for i, top in enumerate(self.ends[self.worst]):
            self.ending[top].append(i)

    def evaluate(self, order: Order, since: int, stop: int) -> Score | None:
        """The score of `order`, which differs from the current one in positions from `since` to before `stop`; None if
        its worst ratio is above the current one."""
        ratios = []
        self.tops: list[list[int]] = []  # ends of the buffers from `since` on, up to where they are as before
        spans = self.problem.spans
        for load, ends, before in zip(self.problem.loads, self.ends, self.before, strict=True):
            limit = self.score[0] * load.bound * (1 + 1e-12)  # a peak must not fail by its own rounding
            height, sizes = self._heights(ends, before, since), load.sizes
            tops: list[int] = []
            for p, i in enumerate(order[since:], since):
                if p >= stop and not p % _APART and height == before[p // _APART]:
                    height = [max(map(ends.__getitem__, order[p:])), *height]
                    break
                begin, end = spans[i]
                top = max(height[begin:end]) + sizes[i]
                if load.bound and top > limit:
                    self.work += p - since + 1
                    return None
                tops.append(top)
                height[begin:end] = [top] * (end - begin)
            self.work += len(order) - since
            self.tops.append(tops)
            ratios.append(load.ratio(max(height)))
        return max(ratios), sum(ratios)

    def _heights(self, ends: list[int], before: list[list[int]], position: int) -> list[int]:
        """The heights of columns of a load when the buffer at `position` of the current order comes down."""
        height = before[position // _APART][:]
        for i in self.order[position - position % _APART : position] if position % _APART else ():
            begin, end = self.problem.spans[i]
            height[begin:end] = [ends[i]] * (end - begin)
        return height

    def propose(self) -> tuple[Order, int, int]:
        """An order with a link of the chain moved past a buffer it meets, and the positions from and before which it
        differs."""
        moving = self.random.choice(self.chain())
        if moving not in self.meets:
            begin, end = self.problem.spans[moving]
            self.meets[moving] = [
                j for j, (b, e) in enumerate(self.problem.spans) if j != moving and b < end and begin < e
            ]
        source, target = self.position[moving], self.position[self.random.choice(self.meets[moving])]
        order = self.order[:]
        del order[source]
        order.insert(target, moving)
        return order, min(source, target), max(source, target) + 1

    def chain(self) -> list[int]:
        """Buffers from the worst peak to the floor, each resting on the next; above the bound two or more."""
        ends, sizes = self.ends[self.worst], self.problem.loads[self.worst].sizes
        spans = self.problem.spans
        links = [self.random.choice(self.ending[max(ends)])]
        while (floor := ends[links[-1]] - sizes[links[-1]]) > 0:
            above = links[-1]
            if above not in self.below:
                place, (begin, end) = self.position[above], spans[above]
                self.below[above] = [
                    j
                    for j in self.ending[floor]
                    if self.position[j] < place and spans[j][0] < end and begin < spans[j][1]
                ]
            links.append(self.random.choice(self.below[above]))
        return links
