"""Program -> Program and Program -> Plan: one idea per file, applied in the order that `PASSES` lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from minbuild.ir import Procedure, Program
from minbuild.ops import Registry
from minbuild.passes.lowering.materialize_symbolic_dims import materialize_symbolic_dims
from minbuild.passes.rewrite.batch_tiling import tile_batches
from minbuild.passes.rewrite.code_sinking import sink_code
from minbuild.passes.rewrite.copy_elision import elide_copies
from minbuild.passes.rewrite.dead_code import drop_dead_code
from minbuild.passes.rewrite.fold_transposes import fold_transposes
from minbuild.passes.rewrite.fuse import fuse_patterns
from minbuild.passes.rewrite.fuse_accumulation import fuse_gradient_accumulation
from minbuild.passes.rewrite.hoist_updates import hoist_parameter_updates
from minbuild.passes.rewrite.in_place import run_in_place
from minbuild.passes.rewrite.legalize_half import legalize_half_precision
from minbuild.passes.rewrite.pool_indices import narrow_pool_indices
from minbuild.passes.rewrite.rematerialization import rematerialize_cheap
from minbuild.passes.rewrite.view_elimination import eliminate_views

Pass = Callable[[Program, Registry], Program]


def _each(rewrite: Callable[[Procedure, Registry], Procedure]) -> Pass:
    """The pass that does the same to every procedure."""

    @wraps(rewrite)
    def rewritten(program: Program, registry: Registry) -> Program:
        return replace(program, procedures=tuple(rewrite(p, registry) for p in program.procedures))

    return rewritten


PASSES: tuple[Pass, ...] = (
    _each(materialize_symbolic_dims),
    _each(legalize_half_precision),
    _each(eliminate_views),
    _each(fold_transposes),
    _each(drop_dead_code),
    _each(fuse_patterns),
    _each(narrow_pool_indices),
    _each(fuse_gradient_accumulation),
    _each(drop_dead_code),
    _each(sink_code),
    _each(rematerialize_cheap),
    _each(elide_copies),
    tile_batches,
    _each(hoist_parameter_updates),
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
