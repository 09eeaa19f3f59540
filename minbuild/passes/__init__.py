"""Program -> Program and Program -> Plan: one idea per file, applied in the order that `PASSES` lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minbuild.model import Procedure, Program
from minbuild.ops import Registry
from minbuild.passes.accumulate import accumulate_at_once
from minbuild.passes.dead_code import drop_dead_code
from minbuild.passes.fold_transposes import fold_transposes
from minbuild.passes.fuse import fuse_patterns
from minbuild.passes.in_place import run_in_place
from minbuild.passes.pool_indices import narrow_pool_indices
from minbuild.passes.recompute import recompute_cheap
from minbuild.passes.views import views_as_aliases
from minbuild.passes.widen import widen_halves

Pass = Callable[[Procedure, Registry], Procedure]

PASSES: tuple[Pass, ...] = (
    widen_halves,
    views_as_aliases,
    fold_transposes,
    drop_dead_code,
    fuse_patterns,
    narrow_pool_indices,
    recompute_cheap,
    accumulate_at_once,
    drop_dead_code,
    run_in_place,
)


def optimize(program: Program, registry: Registry, tell: Callable[[str], None] | None = None) -> Program:
    """All passes over all procedures, in order. `tell` hears one line per pass."""
    for number, each in enumerate(PASSES, 1):
        before = sum(len(p.calls) for p in program.procedures)
        program = replace(program, procedures=tuple(each(p, registry) for p in program.procedures))
        after = sum(len(p.calls) for p in program.procedures)
        if tell:
            tell(f"pass {number}: {each.__name__}: {before} -> {after} calls")
    return program
