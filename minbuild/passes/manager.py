"""The pass pipeline: `PASSES` lists the passes in order with their contracts, `optimize` runs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from minbuild.ir import Procedure, Program
from minbuild.ops import Registry
from minbuild.passes.contracts import Invariant, Known, Pass, Relation, check, check_relations
from minbuild.passes.invariants import (
    ALWAYS,
    CALLS_REPEATED,
    HALVES_SERVED,
    MASKS_OF_BITS,
    NARROW_INDICES,
    NO_ACCUMULATORS,
    NO_DEAD_CALLS,
    NO_MORE_CALLS,
    NO_NEW_CALLS,
    NO_SYMBOLIC_DATA,
    NO_VIEWS,
    SAME_CALLS,
    SAME_INTERFACE,
    SAMPLES_IN_LOOPS,
)
from minbuild.passes.lowering.loop_call import with_bodies
from minbuild.passes.lowering.materialize_symbolic_dims import materialize_symbolic_dims
from minbuild.passes.rewrite.batch_tiling import tile_batches
from minbuild.passes.rewrite.checkpoint_loops import checkpoint_all_loops, checkpoint_loops
from minbuild.passes.rewrite.checkpointing import repeat_inexpensive
from minbuild.passes.rewrite.code_sinking import sink_code
from minbuild.passes.rewrite.copy_elision import elide_copies
from minbuild.passes.rewrite.dead_code import drop_dead_code
from minbuild.passes.rewrite.drop_zero_states import drop_zero_states
from minbuild.passes.rewrite.expand_loops import expand_loops
from minbuild.passes.rewrite.fold_transposes import fold_transposes
from minbuild.passes.rewrite.fuse import fuse_patterns, fuse_shared
from minbuild.passes.rewrite.fuse_accumulation import fuse_gradient_accumulation
from minbuild.passes.rewrite.fuse_dequantization import fuse_dequantization
from minbuild.passes.rewrite.hoist_updates import hoist_parameter_updates
from minbuild.passes.rewrite.in_place import run_in_place
from minbuild.passes.rewrite.join_pieces import join_pieces
from minbuild.passes.rewrite.legalize_half import legalize_half_precision
from minbuild.passes.rewrite.narrow_pool_indices import narrow_pool_indices
from minbuild.passes.rewrite.quantized_activations import add_codes, pack_quantization_masks
from minbuild.passes.rewrite.recompute_ranges import recompute_ranges
from minbuild.passes.rewrite.rematerialization import rematerialize_cheap
from minbuild.passes.rewrite.slice_channels import slice_channels
from minbuild.passes.rewrite.view_elimination import eliminate_views

CHECKS = "MINBUILD_CHECK_PASSES"  # environment variable: 1 has contracts checked, as in all tests

Log = Callable[[str], None]
_Rewrite = Callable[[Procedure, Registry], Procedure]


def _each(
    rewrite: _Rewrite,
    *,
    requires: tuple[Invariant, ...],
    ensures: tuple[Invariant, ...],
    preserves: tuple[Relation, ...] = (),
    bodies: bool = True,
) -> Pass:
    """The pass that applies `rewrite` to every procedure, and to every body of a loop if `bodies`, by itself; it has
    the name of that function."""

    def function(program: Program, registry: Registry) -> Program:
        def rewritten(procedure: Procedure) -> Procedure:
            return rewrite(procedure, registry)

        if bodies and program.has_bodies:
            procedures = tuple(with_bodies(p, rewritten) for p in program.procedures)
        else:
            procedures = tuple(map(rewritten, program.procedures))
        return replace(program, procedures=procedures)

    return Pass(rewrite.__name__, function, requires, ensures, preserves)


_LINEAR = (NO_VIEWS, NO_ACCUMULATORS)  # before these, calls may not be moved or repeated
_LOOPS = (*_LINEAR, SAMPLES_IN_LOOPS)
_ALL_LOOPS = Pass(checkpoint_all_loops.__name__, checkpoint_all_loops, requires=_LOOPS, ensures=_LOOPS)

PASSES: tuple[Pass, ...] = (
    _each(materialize_symbolic_dims, requires=(), ensures=(NO_SYMBOLIC_DATA,)),
    _each(legalize_half_precision, requires=(), ensures=(HALVES_SERVED,)),
    _each(eliminate_views, requires=(), ensures=(NO_VIEWS,), preserves=(NO_MORE_CALLS,)),
    _each(fold_transposes, requires=(NO_VIEWS,), ensures=(NO_VIEWS,), preserves=(NO_MORE_CALLS,)),
    _each(drop_zero_states, requires=(NO_VIEWS,), ensures=(NO_VIEWS,), preserves=(NO_MORE_CALLS,)),
    _each(join_pieces, requires=(NO_VIEWS,), ensures=(NO_VIEWS,), preserves=(NO_MORE_CALLS,)),
    _each(drop_dead_code, requires=(), ensures=(NO_DEAD_CALLS,), preserves=(NO_NEW_CALLS,)),
    _each(fuse_patterns, requires=(NO_VIEWS,), ensures=(NO_VIEWS, NO_DEAD_CALLS), preserves=(NO_MORE_CALLS,)),
    Pass(fuse_shared.__name__, fuse_shared, requires=(NO_VIEWS,), ensures=(NO_VIEWS, NO_DEAD_CALLS)),
    _each(fuse_dequantization, requires=(NO_VIEWS,), ensures=(NO_VIEWS,)),
    _each(narrow_pool_indices, requires=(), ensures=(NARROW_INDICES,), preserves=(SAME_CALLS,)),
    _each(pack_quantization_masks, requires=(), ensures=(MASKS_OF_BITS,), preserves=(SAME_CALLS,)),
    _each(fuse_gradient_accumulation, requires=(), ensures=(NO_ACCUMULATORS,), preserves=(NO_MORE_CALLS,)),
    _each(drop_dead_code, requires=(), ensures=(NO_DEAD_CALLS,), preserves=(NO_NEW_CALLS,)),
    _each(add_codes, requires=_LINEAR, ensures=_LINEAR, preserves=(NO_MORE_CALLS,), bodies=False),
    _each(sink_code, requires=_LINEAR, ensures=_LINEAR, preserves=(SAME_CALLS,)),
    _each(
        rematerialize_cheap,
        requires=(NO_VIEWS,),
        ensures=(NO_VIEWS,),
        preserves=(CALLS_REPEATED,),
        bodies=False,
    ),
    _each(drop_dead_code, requires=(), ensures=(NO_DEAD_CALLS,), preserves=(NO_NEW_CALLS,)),
    _each(repeat_inexpensive, requires=(NO_VIEWS,), ensures=(NO_VIEWS,), preserves=(CALLS_REPEATED,)),
    _each(elide_copies, requires=_LINEAR, ensures=_LINEAR, preserves=(NO_NEW_CALLS,)),
    Pass(recompute_ranges.__name__, recompute_ranges, requires=_LINEAR, ensures=_LINEAR),
    Pass(tile_batches.__name__, tile_batches, requires=_LINEAR, ensures=(*_LINEAR, SAMPLES_IN_LOOPS)),
    Pass(slice_channels.__name__, slice_channels, requires=_LOOPS, ensures=_LOOPS),
    _each(expand_loops, requires=_LINEAR, ensures=(*_LINEAR, SAMPLES_IN_LOOPS)),
    Pass(checkpoint_loops.__name__, checkpoint_loops, requires=_LOOPS, ensures=_LOOPS),
    _each(
        hoist_parameter_updates,
        requires=(SAMPLES_IN_LOOPS,),
        ensures=(SAMPLES_IN_LOOPS,),
        preserves=(SAME_CALLS,),
    ),
    _each(
        run_in_place,
        requires=(NO_VIEWS,),
        ensures=(*_LINEAR, NO_DEAD_CALLS, SAMPLES_IN_LOOPS),
        preserves=(SAME_CALLS,),
    ),
)


def optimize(
    program: Program,
    registry: Registry,
    log: Log | None = None,
    rematerialization: Sequence[Pass] = (),
    looped: Callable[[Program], Program] | None = None,
) -> Program:
    """Applies all passes in order to `program`, as lowered; the program that a plan is made from.

    `registry` holds the operators of its calls; `log` receives one line per pass; `rematerialization`, where given,
    takes the place of those that repeat cheap and inexpensive calls, and has all loops keep checkpoints; `looped` puts
    a training step of one slice of the batch into a loop over all of them, once its calls are in their order. Raises
    ContractViolation where contracts are checked (`CHECKS`) and one is broken."""
    checked, known = os.environ.get(CHECKS) == "1", Known()
    others: dict[str, Sequence[Pass]] = {
        rematerialize_cheap.__name__: rematerialization,
        repeat_inexpensive.__name__: (),
        checkpoint_loops.__name__: (_ALL_LOOPS,),
    }
    passes = chain.from_iterable(others.get(p.name, (p,)) if rematerialization else (p,) for p in PASSES)
    for number, each in enumerate(passes, 1):
        if looped and each.name == tile_batches.__name__:
            program = looped(program)
        before = sum(len(p.calls) for p in program.procedures)
        program = run_pass(each, program, registry, known) if checked else each.function(program, registry)
        after = sum(len(p.calls) for p in program.procedures)
        if log:
            log(f"pass {number}: {each.name}: {before} -> {after} calls")
    return program


def run_pass(each: Pass, program: Program, registry: Registry, known: Known | None = None) -> Program:
    """Applies one pass and checks its contract: the result of `each` on `program`, whose operators `registry` holds.
    `known` remembers what holds from one pass to the next. Raises ContractViolation."""
    known = known or Known()
    check(program, registry, (*ALWAYS, *each.requires), f"before {each.name}", known)
    made = each.function(program, registry)
    check_relations(program, made, (SAME_INTERFACE, *each.preserves), f"across {each.name}")
    check(made, registry, (*ALWAYS, *each.ensures), f"after {each.name}", known)
    return made
