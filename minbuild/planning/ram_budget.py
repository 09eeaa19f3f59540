"""RAM by budget: a plan whose arena fits into what `--ram` leaves beside what persists.

The passes know live bytes before batch tiling, sharing of storage and the arena's layout; the plan knows the bytes that
the device takes. So the passes are run with a limit, the plan is measured, and the limit is corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minbuild.errors import OverBudget
from minbuild.ir import Plan, Procedure, Program
from minbuild.ops import Registry
from minbuild.options.byte_sizes import size_text
from minbuild.passes.analysis.recomputation import seconds_of
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite.checkpointing import TRAIN, checkpointing
from minbuild.planning.arena.peak_memory import arena_peak

_CORRECTIONS = 4  # of a limit that a plan exceeds
_SMALLER = 0.8  # each limit in the search for the least is this part of what was reached before
_MOST_SEARCHES = 16

Build = Callable[[Program], Plan]


@dataclass(frozen=True, slots=True)
class FittedPlan:
    """A plan for a budget: its program, and what its training step costs."""

    program: Program
    plan: Plan
    limit: int  # live bytes of the training step that the passes aimed at
    ram: int  # bytes of its arena and of what persists
    before: int  # the same without a budget
    added_time: float  # estimated share of a training step
    repeated: int  # calls that run again


def ram_of(plan: Plan, sizes: Mapping[str, int]) -> int:
    """Bytes of the largest arena at these `sizes` of the free dimensions and of what persists between calls."""
    return plan.persistent_bytes + max((arena_peak(r, sizes) for r in plan.routines), default=0)


def fit(
    lowered: Program, registry: Registry, sizes: Mapping[str, int], budget: int, build: Build
) -> FittedPlan | None:
    """The plan of `lowered` that takes at most `budget` bytes in little time; None where one without a budget does.
    `registry` has the operators, `sizes` those of the free dimensions, and `build` makes the plan of an optimised
    program. Raises OverBudget with the least that was found."""
    free = optimize(lowered, registry)
    before = build(free)
    if ram_of(before, sizes) <= budget:
        return None
    target = limit = budget - before.persistent_bytes

    def fitted(limit: int) -> FittedPlan:
        program = optimize(lowered, registry, None, checkpointing(limit, sizes))
        plan = build(program)
        old, new = _training(free), _training(program)
        price = seconds_of(new, registry, sizes) / seconds_of(old, registry, sizes) - 1
        again = len(new.calls) - len(old.calls)
        return FittedPlan(
            program,
            plan,
            limit=limit,
            ram=ram_of(plan, sizes),
            before=ram_of(before, sizes),
            added_time=price,
            repeated=again,
        )

    smallest = None
    if not any(p.name == TRAIN for p in lowered.procedures):
        raise OverBudget(
            f"--ram {size_text(budget)}: the graphs take {ram_of(before, sizes):,} bytes of RAM, and only training "
            "steps can compute anything twice to take less. Give more, or a smaller --max-dim."
        )
    if target > 0:
        for _ in range(_CORRECTIONS):
            found = fitted(limit)
            if found.ram <= budget:
                return found
            smallest = found if smallest is None or found.ram < smallest.ram else smallest
            if found.ram - found.plan.persistent_bytes > 1.25 * target:
                break  # the passes found nothing near it
            limit = min(limit - 1, limit * target // (found.ram - found.plan.persistent_bytes))
    found = _least(fitted, ram_of(before, sizes) - before.persistent_bytes)
    if found.ram <= budget:
        return found
    ram = min(found.ram, found.before, *([smallest.ram] if smallest else []))
    raise OverBudget(
        f"--ram {size_text(budget)}: the smallest plan found takes {ram:,} bytes of RAM, "
        f"{before.persistent_bytes:,} of them for what persists (parameters, gradients, moments), "
        f"{ram - before.persistent_bytes:,} for temporaries; without a budget it is {found.before:,}. Give more, "
        "a smaller --max-dim, or train fewer parameters."
    )


def _least(fitted: Callable[[int], FittedPlan], arena: int) -> FittedPlan:
    """The smallest plan on the way down from `arena` bytes."""
    found = best = fitted(int(arena * _SMALLER))
    for _ in range(_MOST_SEARCHES):
        found = fitted(int(_SMALLER * (best.ram - best.plan.persistent_bytes)))
        if found.ram >= best.ram:
            break
        best = found
    return best


def _training(program: Program) -> Procedure:
    return next(p for p in program.procedures if p.name == TRAIN)
