"""Fusing of parameter updates into the training step: each parameter has an update of its own there, so that its
gradient is a temporary which ends with it, and no gradient is stored.

The optimizer of artifacts updates all parameters as one flat tensor. Where its kernels compute every element by itself,
an update for each parameter computes the same bits. `hoist_parameter_updates` moves the updates up to their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from minbuild.errors import BadInput
from minbuild.ir import Call, Procedure, Program, Role, Value
from minbuild.ops import Registry
from minbuild.ops.core.definition import ELEMENTS
from minbuild.passes.invariants import ACCUMULATOR

CHECK_GRADIENT = "minbuild:GradientIsFinite"
_CURE = "Leave out --updates fused: gradients are then stored, and updates are a call of their own."


def fuse_updates(program: Program, registry: Registry, checks: bool) -> Program:
    """`program`, as lowered, with the optimizer's update of each parameter in the training step.

    `registry` holds its operators; `checks` adds a check of each gradient before its update. Raises BadInput where the
    optimizer needs all gradients at once, or where there is none."""
    procedures = {p.name: p for p in program.procedures}
    train, optimize = procedures.get("train"), procedures.get("optimize")
    if train is None or optimize is None or not any(c.op == ACCUMULATOR for c in train.calls):
        raise BadInput(
            "--updates fused: joins a training graph and an optimizer graph, and the trainer does not have both. "
            f"{_CURE}"
        )
    fused = _fused(program, train, optimize, registry, checks)
    rest = tuple(fused if p is train else p for p in program.procedures if p is not optimize)
    return replace(program, procedures=rest, fused_updates=True)


def _fused(
    program: Program, train: Procedure, optimize: Procedure, registry: Registry, checks: bool
) -> Procedure:
    gradients = {
        train.values[c.inputs[0]].of: (c.inputs[1], c.node) for c in train.calls if c.op == ACCUMULATOR
    }
    calls = [c for c in train.calls if c.op != ACCUMULATOR]
    values = {name: v for name, v in train.values.items() if v.role is not Role.GRADIENT}
    values |= {name: v for name, v in optimize.values.items() if v.role in (Role.SCALAR, Role.CONSTANT)}
    _check_elementwise(optimize, registry)
    for parameter in program.parameters:
        if parameter.role is not Role.PARAMETER:
            continue
        if parameter.name not in gradients:
            raise BadInput(
                f"{train.source}: --updates fused: parameter '{parameter.name}' is trained and has no gradient. "
                f"{_CURE}"
            )
        gradient, node = gradients[parameter.name]
        if checks:
            inputs = (parameter.name, gradient)
            calls.append(Call(CHECK_GRADIENT, 1, node, inputs=inputs, outputs=("",)))
        values.setdefault(parameter.name, parameter)
        for call in optimize.calls:
            own = dict(_own_values(optimize, call, parameter, gradient))
            values |= {v.name: v for v in own.values() if v.role is Role.MOMENT}
            names = tuple(own[n].name if n in own else n for n in call.inputs)
            calls.append(replace(call, inputs=names, outputs=("",) * len(call.outputs)))
    alias = {name: target for name, target in train.alias.items() if name in values}
    return replace(train, calls=tuple(calls), values=values, alias=alias)


def _own_values(
    optimize: Procedure, call: Call, parameter: Value, gradient: str
) -> Iterator[tuple[str, Value]]:
    """The values of one parameter that stand for the flat ones which `call` reads."""
    for name in call.inputs:
        flat = optimize.values[name] if name else None
        if flat is None or flat.role not in (Role.PARAMETER, Role.GRADIENT, Role.MOMENT):
            continue
        if flat.role is Role.PARAMETER:
            yield name, parameter
        elif flat.role is Role.GRADIENT:
            yield name, replace(flat, name=gradient)
        else:
            own = f"{parameter.name}.momentum{flat.index}"
            yield name, Value(own, parameter.type, Role.MOMENT, of=parameter.name, index=flat.index)


def _check_elementwise(optimize: Procedure, registry: Registry) -> None:
    """Raises BadInput unless every call computes each element by itself, from the flat tensors and scalars alone."""
    values: Mapping[str, Value] = optimize.values
    for call in optimize.calls:
        kernels = registry.ops[call.op].kernels
        given = all(values[n].role is not Role.TEMPORARY for n in call.inputs if n)
        if not given or not kernels or any(k.cut != ELEMENTS for k in kernels):
            title = call.op.partition(":")[2]
            raise BadInput(
                f"{optimize.source}: --updates fused: node '{call.node}' ({title}) needs the gradients of all "
                f"parameters before the first update, such as to clip their norm. {_CURE}"
            )
