"""Proof step by step: every step of the plan gets on the target the very inputs that it had on this machine. Then
nothing is magnified, no decision drifts, and a step that computes something else, or writes where nothing of it
is, has a name."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.errors import VerificationFailed
from minbuild.ir import ElementType
from minbuild.ir.size_report import StepDeviation
from minbuild.ops import Registry
from minbuild.planning.compiled_model import CompiledModel
from minbuild.toolchain import Target, Toolchain
from minbuild.verify.differential import REPORT
from minbuild.verify.script_runner import Watch, watch
from minbuild.verify.step_deviation import deviation_of, sentence, step_name
from minbuild.verify.step_script import Execution, Output, StepScript, Trace

_RANGES = ("the session's memory", "the plan", "the checkpoint")


def measure_steps(
    steps: StepScript, model: CompiledModel, library: BuiltLibrary, target: Target, toolchain: Toolchain
) -> Trace:
    """The outputs of each of `steps` with `library`, built for `target`, this machine, by `toolchain` from the plan of
    `model`, and their sensitivity to rounding. Raises VerificationFailed, also where a step changes memory that is not
    its own."""
    reply = watch(
        Watch.MEASURE,
        steps.script,
        plan=model.plan_bytes,
        library=library,
        target=target,
        toolchain=toolchain,
        registry=model.registry,
    )
    return Trace(steps, tuple(_outputs(reply, steps, library, model.registry, str(target), measured=True)))


def look_at_steps(
    steps: StepScript, model: CompiledModel, library: BuiltLibrary, target: Target, toolchain: Toolchain
) -> int:
    """The number of `steps` that change nothing but their outputs and scratch, when `library`, built by `toolchain`
    from the plan of `model`, runs on `target`. Raises VerificationFailed where one does."""
    reply = watch(
        Watch.LOOK,
        steps.script,
        plan=model.plan_bytes,
        library=library,
        target=target,
        toolchain=toolchain,
        registry=model.registry,
    )
    return len(list(_outputs(reply, steps, library, model.registry, str(target), measured=False)))


def first_difference(
    steps: StepScript,
    model: CompiledModel,
    ours: BuiltLibrary,
    theirs: BuiltLibrary,
    target: Target,
    toolchain: Toolchain,
) -> str:
    """A sentence on the first of `steps` in which the library `ours` computes other bits than `theirs` from the same
    inputs; "" without any. `toolchain` built both for `target` from the plan of `model`. Raises VerificationFailed
    where a step changes memory that is not its own."""
    trace = measure_steps(steps, model, theirs, target, toolchain)
    reply = watch(
        *(Watch.FOLLOW, steps.script, model.plan_bytes, ours, target, toolchain, model.registry),
        trace=trace.data,
    )
    found = _outputs(reply, steps, ours, model.registry, str(target), measured=False)
    for execution, expected, outputs in zip(steps.executions, trace.outputs, found, strict=True):
        for reference, given in zip(expected, outputs, strict=True):
            deviation = deviation_of(execution, replace(reference, movement=None), given, model.plan)
            if deviation is not None:
                return sentence(deviation)
    return ""


def follow_steps(
    trace: Trace, model: CompiledModel, library: BuiltLibrary, target: Target, toolchain: Toolchain
) -> tuple[int, StepDeviation | None]:
    """The number of steps of `library` on `target` that were compared with `trace`, recorded on this machine, and the
    worst of them. `toolchain` built the library from the plan of `model`. Raises VerificationFailed where one is off by
    more than rounding, or changes memory that is not its own."""
    steps = trace.steps
    reply = watch(
        *(Watch.FOLLOW, steps.script, model.plan_bytes, library, target, toolchain, model.registry),
        trace=trace.data,
    )
    worst: StepDeviation | None = None
    found = _outputs(reply, steps, library, model.registry, str(target), measured=False)
    for execution, expected, outputs in zip(steps.executions, trace.outputs, found, strict=True):
        for ours, theirs in zip(expected, outputs, strict=True):
            deviation = deviation_of(execution, ours, theirs, model.plan)
            if deviation is not None and (worst is None or deviation.units > worst.units):
                worst = deviation
            if worst is not None and not worst.units <= 1:
                raise VerificationFailed(f"{target}: {sentence(worst)} {REPORT}")
    return len(steps.executions), worst


def _outputs(
    reply: bytes, steps: StepScript, library: BuiltLibrary, registry: Registry, label: str, *, measured: bool
) -> Iterator[tuple[Output, ...]]:
    """The outputs of every step. Raises VerificationFailed where one wrote elsewhere too."""
    view, at, skipped = memoryview(reply), 0, 0
    for execution in steps.executions:
        if skipped:
            skipped -= 1
            yield ()
            continue
        name = step_name(execution.graph, execution.number, execution.kernel.symbol, execution.step.node)
        if at + 16 > len(view):
            raise VerificationFailed(f"{label}: the runner ended before {name}. {REPORT}")
        row, count, place, offset = struct.unpack_from("<IIii", view, at)
        at += 16
        ended, row = row >> 31, row & ~(1 << 31)
        if library.kernels[row] != execution.kernel:
            raise VerificationFailed(
                f"{label}: {library.kernels[row].symbol} ran in place of {name}. {REPORT}"
            )
        if place >= 0:
            where = _RANGES[place] if place < len(_RANGES) else f"input {place - len(_RANGES)}"
            raise VerificationFailed(
                f"{label}: {name} changes memory that is neither an output nor scratch of it: byte {offset:,} of "
                f"{where}. {REPORT}"
            )
        outputs = []
        for slot in _written(execution, registry)[:count]:
            (size,) = struct.unpack_from("<I", view, at)
            element = ElementType(execution.kernel.args[slot][0])
            data, at = view[at + 4 : at + 4 + size], at + 4 + size
            movement = None
            if element.is_real and measured:
                movement = np.frombuffer(view[at : at + size // element.size * 4], np.float32)
                at += movement.nbytes
            outputs.append(Output(slot, element, data, movement))
        skipped = execution.skips if ended else 0
        yield tuple(outputs)


def _written(execution: Execution, registry: Registry) -> list[int]:
    """Argument slots of a step's outputs that are there."""
    specs = registry.functions[execution.kernel.function].args
    return [
        slot
        for slot, (spec, arg) in enumerate(zip(specs, execution.step.args, strict=True))
        if "=" in spec and arg >= 0
    ]
