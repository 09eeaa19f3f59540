"""Checks an arena layout without knowing how it was made: shares no code with the planner.

The offsets are computed again, word for word from the device's rule, and the arena is played through step by
step with a ledger of who owns which bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from minbuild.ir import Buffer
from minbuild.ir.dims import Dim, evaluate

_GRANULE = 16  # bytes; what trainer.h asks of the caller's arena
_SHOWN = 10  # findings printed in a message


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: `name`, `size`, `lifespan`, `access`, `loop`, `offset`, `alignment`, `extent` or `overlap`."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Loops:
    """First and last step of every loop, and the buffers that a round reads one sample of: the bytes of all rounds
    together."""

    steps: tuple[tuple[int, int], ...] = ()
    tiled: Mapping[str, Dim] = field(default_factory=dict)


class LayoutFault(Exception):
    """The planner made a layout that would corrupt memory on the device: our fault, never the input's."""

    def __init__(self, where: str, assignment: Mapping[str, int], findings: Sequence[Violation]) -> None:
        """`where` names the procedure, `assignment` has the size of each free dimension, `findings` are the rules
        that are broken."""
        self.findings = tuple(findings)
        symbols = ", ".join(f"{name}={value}" for name, value in sorted(assignment.items()))
        at = f" at {symbols}" if symbols else ""
        lines = [f"{where}: the arena layout{at} is wrong; this is a fault of minbuild, please report it:"]
        lines += [f"  {finding.rule}: {finding.text}" for finding in self.findings[:_SHOWN]]
        if len(self.findings) > _SHOWN:
            lines.append(f"  and {len(self.findings) - _SHOWN} more")
        super().__init__("\n".join(lines))


def validate(
    where: str,
    buffers: Sequence[Buffer],
    offsets: Sequence[int],
    peak: int,
    assignment: Mapping[str, int],
    accesses: Sequence[Iterable[str]],
    loops: Loops = Loops(),
    again: bool = False,
) -> None:
    """Raises LayoutFault with every rule the layout of procedure `where` breaks at `assignment`.

    `buffers` stand in placement order, `offsets` and `peak` (bytes) are what the planner claims for them, and
    `accesses[s]` names the buffers step s reads or writes. The other rules need names, sizes and lifespans that make
    sense, so faults in those are raised first. `loops` has the steps that run once per sample. What does not depend on
    sizes is left out `again`, after a call with the same buffers and accesses."""
    sizes = [evaluate(buffer.bytes, assignment) for buffer in buffers]
    basics = [*_sizes(buffers, sizes)]
    if not again:
        basics = [*_names(buffers, offsets), *basics, *_lifespans(buffers, len(accesses))]
    if basics:
        raise LayoutFault(where, assignment, basics)
    rounded = [(size + _GRANULE - 1) // _GRANULE * _GRANULE for size in sizes]
    findings = [
        *(() if again else _accesses(buffers, accesses)),
        *_loops(buffers, sizes, assignment, accesses, loops),
        *_offsets(buffers, rounded, offsets),
        *_extents(buffers, rounded, offsets, peak),
        *_overlaps(buffers, rounded, offsets, len(accesses)),
    ]
    if findings:
        raise LayoutFault(where, assignment, findings)


def _names(buffers: Sequence[Buffer], offsets: Sequence[int]) -> Iterator[Violation]:
    if len(offsets) != len(buffers):
        yield Violation("offset", f"{len(offsets)} offsets for {len(buffers)} buffers")
    first: dict[str, int] = {}
    for i, buffer in enumerate(buffers):
        if buffer.name in first:
            yield Violation("name", f"buffers {first[buffer.name]} and {i} are both called '{buffer.name}'")
        first.setdefault(buffer.name, i)


def _sizes(buffers: Sequence[Buffer], sizes: Sequence[int]) -> Iterator[Violation]:
    for buffer, size in zip(buffers, sizes, strict=True):
        if size < 0:
            yield Violation("size", f"buffer '{buffer.name}' has {size} bytes ({buffer.bytes})")


def _lifespans(buffers: Sequence[Buffer], steps: int) -> Iterator[Violation]:
    for buffer in buffers:
        if not 0 <= buffer.first <= buffer.last < steps:
            yield Violation("lifespan", f"{_alive(buffer)}, but the steps are 0 to {steps - 1}")


def _accesses(buffers: Sequence[Buffer], accesses: Sequence[Iterable[str]]) -> Iterator[Violation]:
    by_name = {buffer.name: buffer for buffer in buffers}
    for step, names in enumerate(accesses):
        for name in sorted(set(names)):
            buffer = by_name.get(name)
            if buffer is None:
                yield Violation("access", f"step {step} uses buffer '{name}', which has no place")
            elif not buffer.first <= step <= buffer.last:
                yield Violation("access", f"step {step} uses buffer '{name}', but {_alive(buffer)}")


def _loops(
    buffers: Sequence[Buffer],
    sizes: Sequence[int],
    assignment: Mapping[str, int],
    accesses: Sequence[Iterable[str]],
    loops: Loops,
) -> Iterator[Violation]:
    """Is what outlives a round of a loop alive through all of its rounds, and as large as all of them need?"""
    for buffer, size in zip(buffers, sizes, strict=True):
        needed = evaluate(loops.tiled.get(buffer.name, 0), assignment)
        if needed > size:
            yield Violation(
                "loop", f"rounds access {needed} bytes of buffer '{buffer.name}', which has {size}"
            )
        for first, last in loops.steps:
            within = first <= buffer.first and buffer.last <= last and buffer.name not in loops.tiled
            used = any(buffer.name in names for names in accesses[first : last + 1])
            if used and not within and not (buffer.first <= first and last <= buffer.last):
                yield Violation("loop", f"{_alive(buffer)}, not through the loop of steps {first} to {last}")


def _offsets(buffers: Sequence[Buffer], sizes: Sequence[int], offsets: Sequence[int]) -> Iterator[Violation]:
    """Is each claimed offset the one the device will compute from the order?"""
    heights = np.zeros(
        max((buffer.last for buffer in buffers), default=0) + 1, np.int64
    )  # of every step, so far
    for i, buffer in enumerate(buffers):
        live = heights[buffer.first : buffer.last + 1]
        offset = int(live.max())
        live[:] = offset + sizes[i]
        if offsets[i] != offset:
            yield Violation(
                "offset", f"buffer '{buffer.name}' is planned at {offsets[i]}, the device puts it at {offset}"
            )


def _extents(
    buffers: Sequence[Buffer], sizes: Sequence[int], offsets: Sequence[int], peak: int
) -> Iterator[Violation]:
    for buffer, size, offset in zip(buffers, sizes, offsets, strict=True):
        if offset % _GRANULE:
            yield Violation("alignment", f"buffer '{buffer.name}' at {offset} is not {_GRANULE}-byte aligned")
        if offset < 0 or offset + size > peak:
            place = f"[{offset}, {offset + size})"
            yield Violation("extent", f"buffer '{buffer.name}' takes bytes {place} of an arena of {peak}")


def _overlaps(
    buffers: Sequence[Buffer], sizes: Sequence[int], offsets: Sequence[int], steps: int
) -> Iterator[Violation]:
    """Plays all steps: a buffer takes its bytes before its first step and gives them back after its last.

    The ledger has a cell for each piece of the arena between two neighbouring edges of buffers, so it is
    exact to the byte at any arena size.
    """
    ends = {offset + size for offset, size in zip(offsets, sizes, strict=True)}
    cell = {edge: k for k, edge in enumerate(sorted({*offsets, *ends}))}
    owner = np.full(len(cell), -1)
    reported: set[tuple[int, int]] = set()
    arrivals: list[list[int]] = [[] for _ in range(steps)]
    departures: list[list[int]] = [[] for _ in range(steps)]
    for i, buffer in enumerate(buffers):
        arrivals[buffer.first].append(i)
        departures[buffer.last].append(i)
    for step in range(steps):
        for i in arrivals[step]:
            taken = owner[cell[offsets[i]] : cell[offsets[i] + sizes[i]]]
            for other in dict.fromkeys(taken[taken >= 0].tolist()):
                if (other, i) not in reported:
                    reported.add((other, i))
                    yield Violation(
                        "overlap", _clash(step, buffers, sizes=sizes, offsets=offsets, one=other, two=i)
                    )
            taken[:] = i
        for i in departures[step]:
            taken = owner[cell[offsets[i]] : cell[offsets[i] + sizes[i]]]
            taken[taken == i] = -1


def _clash(
    step: int, buffers: Sequence[Buffer], sizes: Sequence[int], offsets: Sequence[int], one: int, two: int
) -> str:
    begin, end = max(offsets[one], offsets[two]), min(offsets[one] + sizes[one], offsets[two] + sizes[two])
    return (
        f"bytes [{begin}, {end}) belong to two buffers at step {step}: "
        f"{_alive(buffers[one])}; {_alive(buffers[two])}"
    )


def _alive(buffer: Buffer) -> str:
    return f"'{buffer.name}' is alive from step {buffer.first} to {buffer.last}"
