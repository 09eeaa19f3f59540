"""Program -> Program and Program -> Plan: one idea per file, applied in the order that `PASSES` lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from minbuild.model import Procedure, Program
from minbuild.ops import Registry
from minbuild.passes.accumulate import accumulate_at_once
from minbuild.passes.dead_code import drop_dead_code
from minbuild.passes.delay import delay_calls
from minbuild.passes.fold_transposes import fold_transposes
from minbuild.passes.fuse import fuse_patterns
from minbuild.passes.in_place import run_in_place
from minbuild.passes.loops import loop_over_samples
from minbuild.passes.pool_indices import narrow_pool_indices
from minbuild.passes.recompute import recompute_cheap
from minbuild.passes.sizes_as_data import sizes_as_data
from minbuild.passes.update_early import update_early
from minbuild.passes.update_in_place import update_in_place
from minbuild.passes.views import views_as_aliases
from minbuild.passes.widen import widen_halves

Pass = Callable[[Program, Registry], Program]


def _each(rewrite: Callable[[Procedure, Registry], Procedure]) -> Pass:
    """The pass that does the same to every procedure."""

    @wraps(rewrite)
    def rewritten(program: Program, registry: Registry) -> Program:
        return replace(program, procedures=tuple(rewrite(p, registry) for p in program.procedures))

    return rewritten


PASSES: tuple[Pass, ...] = (
    _each(sizes_as_data),
    _each(widen_halves),
    _each(views_as_aliases),
    _each(fold_transposes),
    _each(drop_dead_code),
    _each(fuse_patterns),
    _each(narrow_pool_indices),
    _each(accumulate_at_once),
    _each(drop_dead_code),
    _each(delay_calls),
    _each(recompute_cheap),
    _each(update_in_place),
    loop_over_samples,
    _each(update_early),
    _each(run_in_place),
)


def optimize(program: Program, registry: Registry, tell: Callable[[str], None] | None = None) -> Program:
    """All passes in order. `tell` hears one line per pass."""
    for number, each in enumerate(PASSES, 1):
        before = sum(len(p.calls) for p in program.procedures)
        program = each(program, registry)
        after = sum(len(p.calls) for p in program.procedures)
        if tell:
            tell(f"pass {number}: {each.__name__}: {before} -> {after} calls")
    return program
