"""The live tensors at peak arena usage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate

from minbuild.ir import Buffer, Routine, TrainingArtifacts
from minbuild.ir.size_report import Arena, LiveTensor
from minbuild.planning.arena.layout import aligned, buffer_sizes, lower_bound, solution_of
from minbuild.planning.phases import step_phases


def arena_peak(routine: Routine, assignment: Mapping[str, int]) -> int:
    """The height of a graph's arena at these sizes."""
    return solution_of(routine.buffers, buffer_sizes(routine.buffers, assignment)).height


def _step_of(spans: Iterable[tuple[Buffer, int]], bound: int) -> int:
    """The first step at which the buffers of `spans`, each with its bytes, take `bound` bytes together."""
    changes: defaultdict[int, int] = defaultdict(int)
    for buffer, size in spans:
        changes[buffer.first] += size
        changes[buffer.last + 1] -= size
    steps = sorted(changes)
    return next(
        s for s, live in zip(steps, accumulate(changes[s] for s in steps), strict=True) if live == bound
    )


def arena_of(artifacts: TrainingArtifacts, routine: Routine, assignment: Mapping[str, int]) -> Arena:
    """A graph's arena at these sizes: its height, its lower bound, and the tensors live at that step. Sizes are those
    in the arena, rounded up to its alignment, so that they add up to the bound. `artifacts` have the names of values,
    `routine` is the graph's part of a plan, `assignment` the size of each free dimension."""
    sizes = buffer_sizes(routine.buffers, assignment)
    peak = solution_of(routine.buffers, sizes).height
    bound = lower_bound(routine.buffers, sizes)
    if not bound:
        return Arena(routine.name, peak, bound)
    spans = [(buffer, aligned(size)) for buffer, size in zip(routine.buffers, sizes, strict=True) if size]
    step = _step_of(spans, bound)
    phases = step_phases(artifacts, routine)
    live = [
        LiveTensor(buffer.name, routine.steps[buffer.first].node, phases[buffer.first], size)
        for buffer, size in spans
        if buffer.first <= step <= buffer.last
    ]
    ranked = tuple(sorted(live, key=lambda a: (-a.bytes, a.name)))
    return Arena(
        routine.name, peak=peak, lower_bound=bound, step=step, node=routine.steps[step].node, live=ranked
    )
