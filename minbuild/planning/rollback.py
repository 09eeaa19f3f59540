"""Rollback: the variables that a session restores when a training step is refused."""

from __future__ import annotations

from collections.abc import Iterator

from minbuild.errors import Unsupported
from minbuild.ir import Procedure, Program, Role, Value
from minbuild.ops import Registry
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.instruction_selection import select_kernels

# Arguments of kernels whose values a kernel may refuse: indices that name nothing, and their like.
CHECKED_ARGUMENTS = frozenset({"indices", "labels", "lengths", "rois", "images", "ratio"})


def changed_before_refusal(program: Program, registry: Registry) -> frozenset[str]:
    """The variables that a training step may have changed when it is refused: those written before its first output,
    the loss, is known (running statistics), and before the last call that may refuse values of the batch. In artifacts
    that is never behind the loss. A model that carries its own training may read indices behind updates: then all
    variables updated before are among them. Counters of random draws are restored in any case."""
    found: set[str] = set()
    for procedure in program.procedures:
        if procedure.name != "train":
            continue
        effects = Effects(procedure, registry)
        last = max(_loss_at(procedure, effects), *_refusals(procedure, registry, effects))
        for call in procedure.calls[: last + 1]:
            found |= effects.writes(call)
    return frozenset(v.name for v in program.parameters if v.role is Role.BUFFER and v.name in found)


def check_refusals(program: Program, registry: Registry) -> None:
    """Raises Unsupported where a training step could refuse values of a batch behind an update of a parameter, of a
    program with fused updates: a refused batch has to change nothing."""
    for procedure in program.procedures:
        if procedure.name != "train":
            continue
        effects = Effects(procedure, registry)
        checked: set[str] = set()
        updated = ""
        for selection in select_kernels(procedure, registry):
            call = selection.call
            slots = zip(registry.functions[selection.kernel.function].args, selection.args, strict=True)
            checks = [(s, a) for s, a in slots if isinstance(a, str) and a and is_checked(s)]
            named = [arg for spec, arg in checks if "=" not in spec]
            values = {n for n in effects.owners(named) if may_be_refused(procedure.values[n])}
            if updated and values - checked:
                raise Unsupported(
                    [
                        f"{procedure.source}: node '{call.node}' may refuse values of a batch behind the first update "
                        f"of a parameter, '{updated}'. Leave out --updates fused."
                    ]
                )
            made = effects.owners(
                arg for spec, arg in checks if "=" in spec
            )  # by kernels: these are in range
            checked = (checked - effects.produces(call)) | values | made
            written = (n for n in effects.writes(call) if effects.role(n) is Role.PARAMETER)
            updated = updated or next(written, "")


def is_checked(argument: str) -> bool:
    """True if a kernel may refuse values of this argument, `name:type`."""
    return argument.partition(":")[0] in CHECKED_ARGUMENTS


def _loss_at(procedure: Procedure, effects: Effects) -> int:
    """The place of the last call that writes to the loss; behind all calls without one."""
    loss = effects.owner(next(iter(procedure.outputs), ""))
    makers = [i for i, call in enumerate(procedure.calls) if loss in effects.produces(call)]
    return max(makers, default=len(procedure.calls))


def _refusals(procedure: Procedure, registry: Registry, effects: Effects) -> Iterator[int]:
    """-1, and the places of calls that check values which no call before them has checked."""
    yield -1
    checked: set[str] = set()
    for index, call in enumerate(procedure.calls):
        functions = registry.ops[call.op].kernels
        if not any(is_checked(arg) for f in functions for arg in f.args):
            continue
        values = {n for n in effects.reads(call) if may_be_refused(procedure.values[n])}
        if values - checked:
            yield index
        checked |= values | effects.produces(call)


def may_be_refused(value: Value) -> bool:
    """Indices that are computed or given, and real numbers that are given."""
    return value.role is Role.INPUT or not (value.type.element.is_real or value.role is Role.CONSTANT)
