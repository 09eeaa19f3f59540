"""Gradient checkpointing: repeats segments of the forward pass in front of their gradients, so that a training step
fits into a number of bytes.

The choice of what to keep and what to repeat is that of `analysis.checkpoints`. Repeated calls read the same bits as
the first ones and compute the same: no number changes, and what persists, such as running statistics, is updated
once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from minbuild.errors import Unsupported
from minbuild.ir import Call, Procedure, Program, Value
from minbuild.ir.dims import symbols_in
from minbuild.ops import Registry
from minbuild.passes.analysis.batch_tiles import split_calls
from minbuild.passes.analysis.channel_slices import loop_over_slices
from minbuild.passes.analysis.checkpoints import choose_checkpoints
from minbuild.passes.analysis.recomputation import Recomputation
from minbuild.passes.analysis.repetition import Checkpoints, Outcomes, Step
from minbuild.passes.analysis.representative_sizes import PLANNED_SIZES
from minbuild.passes.contracts import Pass
from minbuild.passes.invariants import CALLS_REPEATED, NO_VIEWS
from minbuild.passes.lowering.loop_call import LOOP
from minbuild.passes.rewrite.channel_tiling import tile_channels
from minbuild.passes.rewrite.rematerialization import AGAIN, rematerialize_cheap

TRAIN = "train"
LEAST_GAIN = 8  # without a limit, one part in so many of the live bytes has to be saved
_MOST_TIME = 0.02  # of all calls, for those that run again then
_CLOSE = 1e-6  # of a time, many times what rounding changes in sums of it
_LARGE_CALL = 3  # a call that touches more than the limit divided by it computes its outputs one by one


def checkpointing(
    limit: int, sizes: Mapping[str, int], *, tiled: bool = False, outcomes: Outcomes | None = None
) -> tuple[Pass, ...]:
    """The passes in the place of `rematerialize_cheap` that have the live temporaries of a training step take at most
    `limit` bytes, where that is possible, when the free dimensions have `sizes`: large calls are split, if `tiled`
    marked for slices of channels (`loops_over_channels`), and calls are repeated. `outcomes` collects what is found
    out about choices of these, for other limits."""

    def split(program: Program, registry: Registry) -> Program:
        return _rewritten(program, lambda p: split_large_calls(p, registry, limit, sizes), lambda p: p)

    def tile(program: Program, registry: Registry) -> Program:
        return _rewritten(program, lambda p: tile_large_calls(p, registry, limit, sizes), lambda p: p)

    def repeat(program: Program, registry: Registry) -> Program:
        return _rewritten(
            program,
            lambda p: checkpoint(p, registry, limit, sizes, outcomes),
            lambda p: rematerialize_cheap(p, registry),
        )

    return (
        Pass(split_large_calls.__name__, split, (NO_VIEWS,), (NO_VIEWS,)),
        *((Pass(tile_large_calls.__name__, tile, (NO_VIEWS,), (NO_VIEWS,)),) if tiled else ()),
        Pass(checkpoint.__name__, repeat, (NO_VIEWS,), (NO_VIEWS,), (CALLS_REPEATED,)),
    )


def _rewritten(
    program: Program, training: Callable[[Procedure], Procedure], others: Callable[[Procedure], Procedure]
) -> Program:
    made = (training(p) if p.name == TRAIN else others(p) for p in program.procedures)
    return replace(program, procedures=tuple(made))


def checkpoint(
    procedure: Procedure,
    registry: Registry,
    limit: int,
    sizes: Mapping[str, int],
    outcomes: Outcomes | None = None,
) -> Procedure:
    """`procedure` with calls repeated for at most `limit` live bytes at these `sizes`; `registry` has its operators,
    `outcomes` are those of choices that are known. Where there are loops, whose bodies cannot be there twice, nothing
    but what is cheap is repeated."""
    if _has_loops(procedure):
        return rematerialize_cheap(procedure, registry)
    work = Recomputation(procedure, registry, sizes, outcomes)
    choice, _ = choose_checkpoints(work, limit)
    return _Rewriting(work).run(work.order(choice))


def repeat_inexpensive(procedure: Procedure, registry: Registry) -> Procedure:
    """`procedure`, a training step, with activations and normalizations repeated whose results gradients read, as far
    as that takes a small part of the time and saves a large one of the live bytes; `registry` has its operators."""
    there = any(registry.ops[call.op].inexpensive for call in procedure.calls)
    if not there or procedure.name != TRAIN or _has_loops(procedure):
        return procedure
    names = {
        s for value in procedure.values.values() for dim in value.type.shape or () for s in symbols_in(dim)
    }
    try:
        work = Recomputation(procedure, registry, dict.fromkeys(names, PLANNED_SIZES[-1]))
    except Unsupported:  # reported when kernels are selected for good
        return procedure
    inexpensive = (i for i in work.natural if registry.ops[procedure.calls[i].op].inexpensive)
    ordered = sorted(inexpensive, key=lambda i: (work.saved_seconds(i), i))
    choice = _as_many_repeated(work, ordered, _MOST_TIME * work.step_seconds)
    before = work.outcome(Checkpoints(work.natural)).peak
    saved = before - work.outcome(choice).peak
    return _Rewriting(work).run(work.order(choice)) if saved * LEAST_GAIN >= before else procedure


def _as_many_repeated(work: Recomputation, ordered: Sequence[int], limit: float) -> Checkpoints:
    """The natural choice, with each of the calls `ordered` repeated that leaves the time of all repetitions within
    `limit` seconds. Time is counted up call by call; where it comes close to the limit, the step is simulated, which
    adds in another order."""
    kept, again, seconds = set(work.natural), set[int](), 0.0
    for index in ordered:
        more = work.simulation.repeated_with(index, kept, again)
        total = seconds + sum(work.seconds[i] for i in more)
        if abs(total - limit) <= _CLOSE * limit:
            fits = work.outcome(Checkpoints(frozenset(kept - {index}))).seconds <= limit
        else:
            fits = total <= limit
        if fits:
            kept.remove(index)
            again |= more
            seconds = total
    return Checkpoints(frozenset(kept))


def split_large_calls(
    procedure: Procedure, registry: Registry, limit: int, sizes: Mapping[str, int]
) -> Procedure:
    """`procedure` with a call for each output of operators that compute these independently, where one call touches
    more than a share of `limit` at these `sizes`: between two calls, what only one of them reads comes and goes.
    `registry` has the operators. Where there are loops, nothing is split."""
    if _has_loops(procedure):
        return procedure
    work = Recomputation(procedure, registry, sizes)
    return split_calls(procedure, registry, lambda index: work.bytes_of_call(index) * _LARGE_CALL > limit)


def tile_large_calls(
    procedure: Procedure, registry: Registry, limit: int, sizes: Mapping[str, int]
) -> Procedure:
    """`procedure` with marks at gradients to compute in slices of channels (`tile_channels`) for `limit` live bytes at
    these `sizes`; `registry` has its operators. Where there are loops, nothing is marked."""
    return procedure if _has_loops(procedure) else tile_channels(procedure, registry, limit, sizes)


def loops_over_channels(program: Program, registry: Registry) -> Program:
    """The marked calls of the training step as loops, once all calls are in their order."""
    return _rewritten(program, lambda p: loop_over_slices(p, registry), lambda p: p)


def _has_loops(procedure: Procedure) -> bool:
    return any(call.op == LOOP for call in procedure.calls)


@dataclass
class _Rewriting:
    """The procedure while calls are added that run again."""

    work: Recomputation
    values: dict[str, Value] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)

    def run(self, steps: list[Step]) -> Procedure:
        procedure = self.work.procedure
        self.values, self.alias = dict(procedure.values), dict(procedure.alias)
        return replace(procedure, calls=tuple(map(self.call, steps)), values=self.values, alias=self.alias)

    def call(self, step: Step) -> Call:
        call = self.work.repeats[step.index] if step.again else self.work.procedure.calls[step.index]
        inputs = tuple(self.copy(name, step.reads) for name in call.inputs)
        outputs = tuple(self.copy(name, step.makes) for name in call.outputs)
        return (
            call
            if (inputs, outputs) == (call.inputs, call.outputs)
            else replace(call, inputs=inputs, outputs=outputs)
        )

    def copy(self, name: str, copies: Mapping[int, int]) -> str:
        """The name of the copy of value `name` that a step reads or makes."""
        if not name:
            return name
        owner = self.work.effects.owner(name)
        number = copies.get(self.work.number.get(owner, -1), 0)
        if not number:
            return name
        copied = f"{name}{AGAIN}{f', {number}' if number > 1 else ''})"
        self.values.setdefault(copied, replace(self.values[name], name=copied))
        if name != owner:
            self.alias[copied] = self.copy(owner, copies)
        return copied
