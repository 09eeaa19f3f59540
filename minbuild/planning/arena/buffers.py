"""Buffers of a procedure: its temporaries and the scratch memory of its steps, with their lifespans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minbuild.ir import Buffer, Procedure, Role, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.passes.analysis.aliases import root
from minbuild.passes.analysis.instruction_selection import Selection, touched
from minbuild.passes.analysis.liveness import live_ranges
from minbuild.planning.arena.validator import Loops


def size_of(tensor: TensorType) -> Dim:
    """Bytes of a tensor."""
    return product(tensor.shape or ()) * tensor.element.size


def scratch_name(step: int, slot: int) -> str:
    """The name of a step's scratch memory."""
    return f"scratch of step {step}, argument {slot}"


def buffers_of(
    procedure: Procedure,
    selections: Sequence[Selection],
    accesses: Sequence[Iterable[str]],
    loops: Iterable[range],
) -> tuple[Buffer, ...]:
    """Every temporary with its lifespan; as large as its owner, which views share. `procedure` has the calls,
    `selections` the kernels chosen for each, `accesses` are those of `accesses_of`, `loops` the ranges of calls that
    run once per sample."""
    live = live_ranges(accesses, tiled_of(procedure), loops)
    for name in procedure.outputs:
        owner = root(procedure.alias, name)
        if owner in live:
            live[owner] = (live[owner][0], max(len(selections) - 1, 0))
    temporaries = [Buffer(n, *span, size_of(procedure.values[n].type)) for n, span in live.items()]
    scratch = [
        Buffer(scratch_name(index, slot), index, index, size_of(arg))
        for index, selection in enumerate(selections)
        for slot, arg in enumerate(selection.args)
        if isinstance(arg, TensorType) and selection.kernel.args[slot][0] != 0
    ]
    return tuple(temporaries + scratch)


def accesses_of(procedure: Procedure, selections: Sequence[Selection]) -> tuple[tuple[str, ...], ...]:
    """The temporaries each step touches."""
    return tuple(
        tuple(n for n, _ in touched(s, procedure) if procedure.values[n].role is Role.TEMPORARY)
        for s in selections
    )


def tiled_of(procedure: Procedure) -> Mapping[str, Dim]:
    """Temporaries that loops read one sample at a time: the bytes of all rounds together."""
    tiled = {}
    for name, value in procedure.values.items():
        if value.sample:
            owner = procedure.values[root(procedure.alias, name)]
            if owner.role is Role.TEMPORARY:
                tiled[owner.name] = size_of(owner.type)
    return tiled


def loops_of(procedure: Procedure, selections: Sequence[Selection]) -> tuple[range, ...]:
    """The loops over calls as loops over steps."""
    begins = []  # first step of each call
    step = 0
    for call in procedure.calls:
        begins.append(step)
        while step < len(selections) and selections[step].call is call:
            step += 1
    begins.append(step)
    return tuple(range(begins[loop.start], begins[loop.stop]) for loop in procedure.loops)


def checked(procedure: Procedure, loops: Sequence[range]) -> Loops:
    """The loops, as the independent validator reads them."""
    return Loops(tuple((loop.start, loop.stop - 1) for loop in loops), tiled_of(procedure))
