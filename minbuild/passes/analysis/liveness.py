"""Liveness: the calls at which storage is read for the last time, and the steps between which it is live."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from minbuild.ir import Procedure
from minbuild.passes.analysis.aliases import present_inputs
from minbuild.passes.analysis.effects import Effects


def last_uses(procedure: Procedure, effects: Effects) -> dict[str, int]:
    """For every owner of storage the last call that touches it; outputs of the procedure are used after the last
    call."""
    last: dict[str, int] = {}
    for index, call in enumerate(procedure.calls):
        for owner in effects.touches(call):
            last[owner] = index
    for owner in effects.owners(procedure.outputs):
        last[owner] = len(procedure.calls)
    return last


def first_writes(procedure: Procedure, effects: Effects) -> dict[str, int]:
    """For every owner of storage the first call with it as output."""
    first: dict[str, int] = {}
    for index, call in enumerate(procedure.calls):
        for owner in effects.produces(call):
            first.setdefault(owner, index)
    return first


def readers(procedure: Procedure, effects: Effects) -> dict[str, list[int]]:
    """For every owner of storage the calls that read it, once per input; an output of the procedure counts as a reader
    at the end."""
    found: dict[str, list[int]] = defaultdict(list)
    for index, call in enumerate(procedure.calls):
        for name in present_inputs(call):
            found[effects.owner(name)].append(index)
    for name in procedure.outputs:
        found[effects.owner(name)].append(len(procedure.calls))
    return found


def only_read_as(
    procedure: Procedure, effects: Effects, name: str, readers_of: Sequence[int], op: str, number: int
) -> bool:
    """True if calls of `op` read `name` as their input `number`, by that name, and nothing else does: of `procedure`,
    whose `effects` these are. `readers_of` are the calls that read it."""
    calls = [procedure.calls[i] for i in readers_of if i < len(procedure.calls)]
    straight = all(call.op == op and call.inputs[number] == name for call in calls)
    return straight and len(calls) == len(readers_of) and effects.owner(name) == name


def live_ranges(
    accesses: Sequence[Iterable[str]], sliced: Iterable[str], loops: Iterable[range]
) -> dict[str, tuple[int, int]]:
    """The first and last step at which each name is live.

    `accesses` are the names that each step touches, `loops` the ranges of steps that run once per sample, and `sliced`
    the names whose samples the rounds of a loop see one by one. A name that is written and last read within one round
    is live between these two steps; every other name that a loop touches is live through all of its rounds.
    """
    live: dict[str, tuple[int, int]] = {}
    for step, names in enumerate(accesses):
        for name in names:
            live[name] = (live.get(name, (step,))[0], step)
    whole = set(sliced)
    for loop in loops:
        for name in {name for step in loop for name in accesses[step]}:
            first, last = live[name]
            if name in whole or first < loop.start or last >= loop.stop:
                live[name] = (min(first, loop.start), max(last, loop.stop - 1))
    return live
