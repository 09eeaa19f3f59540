"""Checkpoints: the choice of forward results to keep, so that a step fits into a number of bytes in the least time.

The forward pass is cut into segments where little crosses; what crosses is kept, and each segment is computed again
when its gradients begin. Of segments of many sizes, those that fit in the least time are taken. Where none fits, calls
whose results are live at the peak are kept or repeated otherwise, one by one. In the end whatever is dropped without
need is kept again, that which costs most time for its bytes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from minbuild.passes.analysis.recomputation import Recomputation
from minbuild.passes.analysis.repetition import Checkpoints, Outcome

_SEGMENTS = 24  # sizes of segments to try
_SHRINK = 0.8  # each is this part of the one before
_DESCENTS = 3  # starts from which smaller steps are looked for
_MOST_MOVES = 60  # of each descent
_LARGEST = 10  # calls whose results are live at a peak that a move of a descent considers
_NEXT = 0.97  # of the peak: what a descent aims at next
_MOST_TRIALS = 400  # simulations that keep dropped results again


def choose_checkpoints(work: Recomputation, limit: int) -> tuple[Checkpoints, Outcome]:
    """The calls of `work` to keep and to repeat for a step of at most `limit` bytes in little time; where none that is
    found is so small, one with little memory."""
    natural = Checkpoints(work.natural)
    found = work.outcome(natural)
    if found.peak <= limit:
        return natural, found
    ranked = [(_rank(found, limit), natural, found)]
    for choice in _starts(work):
        outcome = work.outcome(choice)
        ranked.append((_rank(outcome, limit), choice, outcome))
    ranked.sort(key=lambda each: each[0])
    best, found = ranked[0][1:]
    if found.peak > limit:
        ranked.sort(key=lambda each: (each[2].peak, each[2].seconds))
        descents = [_with_less_memory(work, *each[1:], limit) for each in ranked[:_DESCENTS]]
        best, found = min(descents, key=lambda each: (max(each[1].peak, limit), each[1].seconds))
    return _with_less_work(work, best, found, max(limit, found.peak))


def _rank(outcome: Outcome, limit: int) -> tuple[int, float]:
    """The rank of an outcome: by time where it fits, behind all of these by the bytes over the `limit`."""
    return outcome.excess(limit), outcome.seconds


def _starts(work: Recomputation) -> Iterator[Checkpoints]:
    """Choices to begin with."""
    cheap = frozenset(work.repeats) - work.heavy
    for kept in (frozenset(work.repeats) - cheap, *_segmentations(work)):
        yield Checkpoints(kept)
        yield Checkpoints(kept, cheap - kept)
        yield Checkpoints(kept, cheap - kept, cheap - kept)


def _with_less_memory(
    work: Recomputation, choice: Checkpoints, outcome: Outcome, limit: int
) -> tuple[Checkpoints, Outcome]:
    """`choice`, whose `outcome` in `work` is given, with other calls kept or repeated among those whose results are
    live at the peak, one at a time, as long as less is over the `limit`, or over a little less than the peak where
    that is far from it."""
    for _ in range(_MOST_MOVES):
        if outcome.peak <= limit:
            break
        target = max(limit, int(outcome.peak * _NEXT))
        moves = [(moved, work.outcome(moved)) for moved in _moves(work, choice, outcome)]
        ranked = sorted(moves, key=lambda each: _rank(each[1], target))
        if not ranked or ranked[0][1].excess(target) >= outcome.excess(target):
            break
        choice, outcome = ranked[0]
    return choice, outcome


def _moves(work: Recomputation, choice: Checkpoints, outcome: Outcome) -> Iterator[Checkpoints]:
    """`choice` with one of the calls whose results are live at the peak of `outcome`, the largest of them, treated
    otherwise."""
    there = sorted({n for n in outcome.at_peak if n in work.maker}, key=lambda n: (-work.bytes[n], n))
    for index in list(dict.fromkeys(work.maker[n] for n in there))[:_LARGEST]:
        kept, volatile, brief = (index in each for each in (choice.kept, choice.volatile, choice.brief))
        if not kept:
            yield choice.with_kept(index)
        if kept or volatile:
            yield choice.with_repeated(index)
        if kept or not volatile or brief:
            yield choice.with_repeated(index, volatile=True)
        if not brief:
            yield choice.with_repeated(index, brief=True)


def _segmentations(work: Recomputation) -> Iterator[frozenset[int]]:
    """Calls to keep between segments, for a range of sizes of these."""
    crossing = _crossing(work)
    costs = [sum(work.bytes[n] for n in _numbers(work, kept)) for kept in crossing]
    inside = [0] * (work.loss + 2)  # bytes that gradients read of the results before each place
    read = {n for i in range(work.loss + 1, len(work.reads)) for n in work.reads[i]}
    for number in read:
        if number in work.maker:
            inside[work.maker[number] + 1] += work.bytes[number]
    inside = list(accumulate(inside))
    size = float(inside[-1])
    seen = set()
    for _ in range(_SEGMENTS):
        size *= _SHRINK
        kept = frozenset(i for cut in _cuts(costs, inside, size) for i in crossing[cut])
        if kept not in seen:
            seen.add(kept)
            yield kept


def _numbers(work: Recomputation, kept: frozenset[int]) -> Iterator[int]:
    for index in kept:
        yield from work.remade[index]


def _crossing(work: Recomputation) -> list[frozenset[int]]:
    """For every place before a forward call the repeatable calls whose results later forward calls read."""
    last: dict[int, int] = {}
    for index in range(work.loss + 1):
        for number in work.reads[index]:
            if number in work.maker:
                last[work.maker[number]] = index
    live: set[int] = set()
    found = []
    for index in range(work.loss + 2):
        live = {i for i in live if last[i] >= index}
        found.append(frozenset(live))
        if index in last:
            live.add(index)
    return found


def _cuts(costs: list[int], inside: list[int], size: float) -> list[int]:
    """The places to cut for segments of at most `size` bytes (or of one call) that keep the fewest bytes in all.
    `costs` are the bytes to keep for a cut at each place, `inside` those within all that stands before it."""
    best, before = [0.0] * len(costs), [0] * len(costs)
    for end in range(1, len(costs)):
        start = end - 1
        best[end], before[end] = best[start] + costs[start], start
        while start > 0 and inside[end] - inside[start - 1] <= size:
            start -= 1
            cost = best[start] + (costs[start] if start else 0)
            if cost < best[end]:
                best[end], before[end] = cost, start
    cuts, at = [], len(costs) - 1
    while at > 0:
        at = before[at]
        cuts.append(at)
    return [cut for cut in cuts if cut]


def _with_less_work(
    work: Recomputation, choice: Checkpoints, outcome: Outcome, limit: int
) -> tuple[Checkpoints, Outcome]:
    """`choice`, whose `outcome` in `work` is given, with more calls kept or run at most twice where that fits into
    `limit` and saves time."""
    again = sorted(
        {s.index for s in work.order(choice) if s.again}, key=lambda i: (-work.saved_seconds(i), i)
    )
    for index in again[:_MOST_TRIALS]:
        for more in (choice.with_kept(index), choice.with_repeated(index)):
            found = work.outcome(more)
            if found.peak <= limit and found.seconds < outcome.seconds:
                choice, outcome = more, found
                break
    return choice, outcome
