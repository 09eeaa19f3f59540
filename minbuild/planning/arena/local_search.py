"""A seeded search that improves a packing by moving the buffers that hold up its peak."""

from __future__ import annotations

import random
from collections import defaultdict

from minbuild.planning.arena.placement import Order, Problem, Score

_SEED = 20240719
_PATIENCE = 3_000  # moves without a better peak before a search gives up


class Search:
    """Moves one buffer of a chain that holds up the worst peak; keeps every move that makes nothing worse.

    The peak is the length of a chain of buffers each resting on the one before: only an order that breaks the
    chain can lower it. `before[a][p]` are load a's column heights when the buffer at position p comes down,
    so a move is judged from the first position it changes, and dropped as soon as one buffer ends too high.
    """

    def __init__(self, problem: Problem, order: Order) -> None:
        self.problem = problem
        self.random = random.Random(_SEED)
        self.work = 0
        self.before = [[[0] * problem.columns for _ in range(len(order) + 1)] for _ in problem.loads]
        self.ends = [[0] * len(order) for _ in problem.loads]
        self.meets = [
            [j for j, (b, e) in enumerate(problem.spans) if j != i and b < end and begin < e]
            for i, (begin, end) in enumerate(problem.spans)
        ]
        self.accept(order, 0)

    def run(self, budget: int) -> None:
        """Improves `order` until it is at the bound, `budget` is used up, or nothing has helped for long."""
        idle = 0
        while self.score[0] > 1.0 and self.work < budget and idle < _PATIENCE:
            idle += 1
            order, since = self.propose()
            score = self.evaluate(order, since)
            if score is not None and score <= self.score:
                idle = 0 if score < self.score else idle
                self.accept(order, since)

    def accept(self, order: Order, since: int) -> None:
        """Makes `order`, which differs from position `since` on, the current one."""
        self.order = order
        self.below: dict[
            int, list[int]
        ] = {}  # of the buffers asked for: what each may rest on in the worst load
        self.position = {i: p for p, i in enumerate(order)}
        for load, ends, before in zip(self.problem.loads, self.ends, self.before, strict=True):
            height = before[since][:]
            for p in range(since, len(order)):
                i = order[p]
                begin, end = self.problem.spans[i]
                ends[i] = top = max(height[begin:end]) + load.sizes[i]
                height[begin:end] = [top] * (end - begin)
                before[p + 1] = height[:]
        self.work += (len(order) - since) * len(self.ends)
        ratios = [load.ratio(max(ends)) for load, ends in zip(self.problem.loads, self.ends, strict=True)]
        self.score: Score = (max(ratios), sum(ratios))
        self.worst = ratios.index(self.score[0])
        self.ending: dict[int, list[int]] = defaultdict(list)  # height -> buffers, in the worst load
        for i, top in enumerate(self.ends[self.worst]):
            self.ending[top].append(i)

    def evaluate(self, order: Order, since: int) -> Score | None:
        """The score of `order`, None if its worst ratio is above the current one."""
        ratios = []
        for load, before in zip(self.problem.loads, self.before, strict=True):
            limit = self.score[0] * load.bound * (1 + 1e-12)  # a peak must not fail by its own rounding
            height = before[since][:]
            for p in range(since, len(order)):
                begin, end = self.problem.spans[order[p]]
                top = max(height[begin:end]) + load.sizes[order[p]]
                if load.bound and top > limit:
                    self.work += p - since + 1
                    return None
                height[begin:end] = [top] * (end - begin)
            self.work += len(order) - since
            ratios.append(load.ratio(max(height)))
        return max(ratios), sum(ratios)

    def propose(self) -> tuple[Order, int]:
        """An order with a link of the chain moved past a buffer it meets, and where it starts to differ."""
        moving = self.random.choice(self.chain())
        source, target = self.position[moving], self.position[self.random.choice(self.meets[moving])]
        order = self.order[:]
        del order[source]
        order.insert(target, moving)
        return order, min(source, target)

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
