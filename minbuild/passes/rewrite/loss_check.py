"""A training step can be made to end, with an error, as soon as its loss turns out to be infinite or no number: before
any gradient is written, so that gradients, parameters and optimizer state stay as they were."""

from __future__ import annotations

from dataclasses import replace

from minbuild.errors import Unsupported
from minbuild.ir import Call, Procedure, Program
from minbuild.ops import Registry
from minbuild.passes.analysis.aliases import present_outputs
from minbuild.passes.analysis.effects import Effects

CHECK = "minbuild:LossIsFinite"


def check_loss(program: Program, registry: Registry) -> Program:
    """`program` with the check in the training step; `registry` holds its operators. Running statistics, which the loss
    depends on, are updated from the batch by then. Raises Unsupported where no loss can be found."""
    procedures = tuple(_checked(p, registry) if p.name == "train" else p for p in program.procedures)
    return replace(program, procedures=procedures)


def _checked(procedure: Procedure, registry: Registry) -> Procedure:
    """The first output is the loss, as in all artifacts."""
    loss = next(iter(procedure.outputs), "")
    maker = next((call for call in procedure.calls if loss in present_outputs(call)), None)
    if maker is None or loss in procedure.alias or not procedure.values[loss].type.element.is_real:
        raise Unsupported(
            [
                f"{procedure.source}: the loss cannot be checked: the first output "
                f"('{loss}') is no real number that a node computes. Put the loss first, or leave "
                "loss out of --finite-checks."
            ]
        )
    unchecked = f"{loss} (unchecked)"
    first = _leading_to(procedure, Effects(procedure, registry), loss)
    before = [c for i, c in enumerate(procedure.calls) if i in first]
    before = [
        replace(c, outputs=tuple(unchecked if n == loss else n for n in c.outputs))
        if loss in c.outputs
        else c
        for c in before
    ]
    after = [c for i, c in enumerate(procedure.calls) if i not in first]
    check = Call(CHECK, 1, maker.node, inputs=(unchecked,), outputs=(loss,))
    values = {**procedure.values, unchecked: replace(procedure.values[loss], name=unchecked)}
    return replace(procedure, calls=(*before, check, *after), values=values)


def _leading_to(procedure: Procedure, effects: Effects, name: str) -> frozenset[int]:
    """The calls that `name` depends on: they come first, in whatever order the file has them."""
    needed, found = {effects.owner(name)}, set[int]()
    maker = next(i for i, call in enumerate(procedure.calls) if name in present_outputs(call))
    for index in reversed(range(maker + 1)):  # what is changed behind it does not lead to it
        call = procedure.calls[index]
        if needed & effects.produces(call):
            found.add(index)
            needed |= effects.reads(call)
    return frozenset(found)
