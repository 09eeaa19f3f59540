"""Proof step by step: every step of the plan gets on the target the very inputs that it had on this machine. Then
nothing is magnified, no decision drifts, and a step that computes something else, or writes where nothing of it
is, has a name."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.errors import VerificationFailed
from minbuild.ir import ElementType, Kernel, Plan, Routine, Step
from minbuild.ir.dims import evaluate
from minbuild.ir.size_report import StepDeviation
from minbuild.ops import Registry
from minbuild.planning.compile import CompiledModel
from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch, smallest_sizes
from minbuild.toolchain import Target, Toolchain
from minbuild.verify.differential import PACES, REPORT, Pace
from minbuild.verify.rounding import bounds, depth_of
from minbuild.verify.script import Action, TestScript
from minbuild.verify.script_runner import Watch, watch

_GRAPHS = {"train": "train", "eval": "eval", "optimizer": "optimize", "initialize": "initialize"}  # of verbs
_RANGES = ("the session's memory", "the plan", "the checkpoint")


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a step: in which graph, its number there, and sizes of the free dimensions."""

    graph: str
    number: int
    step: Step
    kernel: Kernel
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a step in one argument; `movement` as steps.cc measures it, None where bits have to be the same."""

    slot: int
    element: ElementType
    data: memoryview
    movement: np.ndarray | None


@dataclass(frozen=True, slots=True)
class StepScript:
    """A script that runs every graph of a plan, with the steps that this takes, in order."""

    script: TestScript
    executions: tuple[Execution, ...]


@dataclass(frozen=True)
class Trace:
    """The outputs of every step of a script on this machine."""

    steps: StepScript
    outputs: tuple[tuple[Output, ...], ...]

    @cached_property
    def data(self) -> bytes:
        """All of it in order, as the runner reads it."""
        return b"".join(output.data for outputs in self.outputs for output in outputs)


def step_script(model: CompiledModel, checkpoint: bytes, pace: Pace = PACES[0]) -> StepScript:
    """Evaluation, training, training on another batch whose gradients add up, and an optimizer step after each: on
    the smallest batches of `model` with more than one sample where that is possible. The session starts from
    `checkpoint`, a file's bytes; `pace` scales batches and learning rate."""
    program, plan = model.program, model.plan
    size = smallest_sizes(program)
    limits, inputs = index_limits(program, model.registry), inputs_of(program)
    graphs = {p.name: p.inputs for p in program.procedures}
    batches: dict[str, tuple[np.ndarray, ...]] = {}
    sizes: dict[str, Mapping[str, int]] = {}
    for number in range(2):
        at = dict.fromkeys(plan.symbols, size - number)
        arrays = seeded_batch(inputs, limits, at, number, pace.scale)
        for graph in ("train", "eval"):
            if graph in graphs:
                sizes[f"{graph} {number}"] = at
                batches[f"{graph} {number}"] = tuple(arrays[name] for name in graphs[graph])
    actions = [Action("create", "start"), Action("rate", repr(pace.rate))]
    actions += [Action("eval", "eval 0")] if "eval" in graphs else []
    for number in range(2):
        actions += [Action("train", f"train {number}")] if "train" in graphs else [Action("copy")]
        actions += [Action("optimizer")] if "optimize" in graphs else []
    actions += [Action("initialize")] if "initialize" in graphs else []
    script = TestScript(tuple(size for _ in plan.symbols), batches, {"start": checkpoint}, tuple(actions))
    return StepScript(script, tuple(_executions(plan, script, sizes)))


def _executions(
    plan: Plan, script: TestScript, sizes: Mapping[str, Mapping[str, int]]
) -> Iterator[Execution]:
    routines = {routine.name: routine for routine in plan.routines}
    now: Mapping[str, int] = dict.fromkeys(plan.symbols, script.sizes[0] if script.sizes else 1)
    for action in script.actions:
        graph = _GRAPHS.get(action.verb)
        if graph is None:
            continue
        now = sizes.get(action.operand, now)
        for number in _order(routines[graph], now):
            step = routines[graph].steps[number]
            yield Execution(graph, number, step, plan.kernels[step.kernel], now)


def _order(routine: Routine, sizes: Mapping[str, int]) -> Iterator[int]:
    """Numbers of the steps as they run; loops run once per sample."""
    samples, sample, number = evaluate(routine.samples, sizes), 0, 0
    while number < len(routine.steps):
        yield number
        loop = routine.steps[number].loop
        if loop:
            sample += 1
            if sample < samples:
                number -= loop
            else:
                sample = 0
        number += 1


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
    return Trace(steps, tuple(_answers(reply, steps, library, model.registry, str(target), measured=True)))


def look_at_steps(
    steps: StepScript, model: CompiledModel, library: BuiltLibrary, target: Target, toolchain: Toolchain
) -> int:
    """The number of steps that change nothing but their outputs and scratch. Raises VerificationFailed where one
    does."""
    reply = watch(
        Watch.LOOK,
        steps.script,
        plan=model.plan_bytes,
        library=library,
        target=target,
        toolchain=toolchain,
        registry=model.registry,
    )
    return len(list(_answers(reply, steps, library, model.registry, str(target), measured=False)))


def first_difference(
    steps: StepScript,
    model: CompiledModel,
    ours: BuiltLibrary,
    theirs: BuiltLibrary,
    target: Target,
    toolchain: Toolchain,
) -> str:
    """The first step whose bits are not those of `theirs`, given the same inputs; "" without any."""
    trace = measure_steps(steps, model, theirs, target, toolchain)
    reply = watch(
        *(Watch.FOLLOW, steps.script, model.plan_bytes, ours, target, toolchain, model.registry),
        trace=trace.data,
    )
    found = _answers(reply, steps, ours, model.registry, str(target), measured=False)
    for execution, expected, outputs in zip(steps.executions, trace.outputs, found, strict=True):
        for wanted, given in zip(expected, outputs, strict=True):
            deviation = _deviation(execution, replace(wanted, movement=None), given, model.plan)
            if deviation is not None:
                return sentence(deviation)
    return ""


def follow_steps(
    trace: Trace, model: CompiledModel, library: BuiltLibrary, target: Target, toolchain: Toolchain
) -> tuple[int, StepDeviation | None]:
    """The number of steps that were compared with those of this machine, and the worst of them. Raises
    VerificationFailed where one is off by more than rounding, or changes what is not its own."""
    steps = trace.steps
    reply = watch(
        *(Watch.FOLLOW, steps.script, model.plan_bytes, library, target, toolchain, model.registry),
        trace=trace.data,
    )
    worst: StepDeviation | None = None
    found = _answers(reply, steps, library, model.registry, str(target), measured=False)
    for execution, expected, outputs in zip(steps.executions, trace.outputs, found, strict=True):
        for ours, theirs in zip(expected, outputs, strict=True):
            deviation = _deviation(execution, ours, theirs, model.plan)
            if deviation is not None and (worst is None or deviation.units > worst.units):
                worst = deviation
            if worst is not None and not worst.units <= 1:
                raise VerificationFailed(f"{target}: {sentence(worst)} {REPORT}")
    return len(steps.executions), worst


def sentence(d: StepDeviation) -> str:
    """Where a step is off, and by how much."""
    return (
        f"{_name(d.graph, d.step, d.kernel, d.node)} computes something else than on this machine with the same "
        f"inputs: argument {d.output}, element {d.element} is {d.found:.9g}, expected {d.expected:.9g}, "
        + (
            f"which is {d.units:.3g} times what rounding allows."
            if d.bound
            else "and rounding has no part in it."
        )
    )


def _name(graph: str, number: int, kernel: str, node: str) -> str:
    return f"step {number} of {graph} ({kernel} of node '{node}')"


def _answers(
    reply: bytes, steps: StepScript, library: BuiltLibrary, registry: Registry, label: str, *, measured: bool
) -> Iterator[tuple[Output, ...]]:
    """The outputs of every step. Raises VerificationFailed where one wrote elsewhere too."""
    view, at = memoryview(reply), 0
    for execution in steps.executions:
        name = _name(execution.graph, execution.number, execution.kernel.symbol, execution.step.node)
        if at + 16 > len(view):
            raise VerificationFailed(f"{label}: the runner ended before {name}. {REPORT}")
        row, count, place, offset = struct.unpack_from("<IIii", view, at)
        at += 16
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
        yield tuple(outputs)


def _written(execution: Execution, registry: Registry) -> list[int]:
    """Argument slots of a step's outputs that are there."""
    specs = registry.functions[execution.kernel.function].args
    return [
        slot
        for slot, (spec, arg) in enumerate(zip(specs, execution.step.args, strict=True))
        if "=" in spec and arg >= 0
    ]


def _deviation(execution: Execution, ours: Output, theirs: Output, plan: Plan) -> StepDeviation | None:
    """The worst element of an output; None where all bits are the same."""
    if ours.data == theirs.data:
        return None
    kind = ours.element.dtype
    expected, found = np.frombuffer(ours.data, kind), np.frombuffer(theirs.data, kind)
    a, b = expected.astype(np.float64), found.astype(np.float64)
    if ours.movement is None:
        bound = np.zeros(a.shape)
        off = np.where(expected.view(f"u{kind.itemsize}") == found.view(f"u{kind.itemsize}"), 0.0, np.inf)
    else:
        bound = _bound(execution, ours, expected, plan)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.where(same, 0.0, np.abs(a - b) / bound)
        off = np.where(np.isnan(off), np.inf, off)
    at = int(off.argmax())
    return StepDeviation(
        *(execution.graph, execution.number, execution.kernel.symbol, execution.step.node, ours.slot, at),
        *(float(off[at]), float(b[at]), float(a[at]), float(bound[at])),
    )


def _bound(execution: Execution, output: Output, expected: np.ndarray, plan: Plan) -> np.ndarray:
    assert output.movement is not None
    step, sizes = execution.step, execution.sizes
    shapes = {slot: _shape(plan, arg, sizes) for slot, arg in enumerate(step.args) if arg >= 0}
    reals = {
        slot for slot, (number, _, _) in enumerate(execution.kernel.args) if _real(number) and slot in shapes
    }
    written = {slot for slot, (_, writes, _) in enumerate(execution.kernel.args) if writes}
    depth = depth_of([prod(shapes[s]) for s in reals & written], [prod(shapes[s]) for s in reals - written])
    doubles = all(execution.kernel.args[s][0] == ElementType.DOUBLE for s in reals)
    shape = shapes[output.slot]
    return bounds(
        output.element, expected.reshape(shape), output.movement.reshape(shape), depth, doubles
    ).reshape(-1)


def _real(number: int) -> bool:
    return number in ElementType._value2member_map_ and ElementType(number).is_real


def _shape(plan: Plan, arg: int, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(d, sizes) for d in plan.tensors[arg].shape)
