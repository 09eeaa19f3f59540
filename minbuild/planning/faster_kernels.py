"""The kernels of a plan for a budget: as fast as the RAM that the plan leaves of it allows.

Whether calls run again is found with kernels of little scratch memory. Calls of layers that hold few live bytes have
room for more than that, so kernels that take more are tried then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from minbuild.ir import Kernel, Plan
from minbuild.ir.kernel_choice import KernelChoice
from minbuild.planning.ram_budget import ram_of

_HALVINGS = 4  # of the scratch memory that is tried


def faster_kernels(
    plan: Plan,
    sizes: Mapping[str, int],
    budget: int,
    kernels: KernelChoice,
    build: Callable[[KernelChoice], Plan],
) -> tuple[Plan, KernelChoice]:
    """The plan of the most scratch memory that takes at most `budget` bytes of RAM at the `sizes` of the free
    dimensions, and its kernels. `plan` is what `build` makes of `kernels`, which are those of the least scratch."""
    scratch = budget - plan.persistent_bytes
    for _ in range(_HALVINGS):
        choice = replace(kernels, scratch=scratch)
        found = build(choice)
        if _called(found) == _called(plan):
            break  # as fast with less
        if ram_of(found, sizes) <= budget:
            return found, choice
        scratch //= 2
    return plan, kernels


def _called(plan: Plan) -> list[Kernel]:
    return [plan.kernels[step.kernel] for routine in plan.routines for step in routine.steps]
