"""Program -> Program and Program -> Plan: one idea per file, applied in the order that `PASSES` lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from minbuild.ir import Procedure, Program
from minbuild.ops import Registry
from minbuild.passes.lowering.materialize_symbolic_dims import sizes_as_data
from minbuild.passes.rewrite.batch_tiling import loop_over_samples
from minbuild.passes.rewrite.code_sinking import delay_calls
from minbuild.passes.rewrite.copy_elision import update_in_place
from minbuild.passes.rewrite.dead_code import drop_dead_code
from minbuild.passes.rewrite.fold_transposes import fold_transposes
from minbuild.passes.rewrite.fuse import fuse_patterns
from minbuild.passes.rewrite.fuse_accumulation import accumulate_at_once
from minbuild.passes.rewrite.hoist_updates import update_early
from minbuild.passes.rewrite.in_place import run_in_place
from minbuild.passes.rewrite.legalize_half import widen_halves
from minbuild.passes.rewrite.pool_indices import narrow_pool_indices
from minbuild.passes.rewrite.rematerialization import recompute_cheap
from minbuild.passes.rewrite.view_elimination import views_as_aliases

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
