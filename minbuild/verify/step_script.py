"""A script that runs every graph of a plan, and the outputs of each step that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minbuild.ir import ElementType, Kernel, Plan, Routine, Step
from minbuild.ir.dims import evaluate
from minbuild.ir.mapped import FileBytes
from minbuild.ops.recurrent.loop_control import set_rounds_kernel, skip_round_kernel
from minbuild.planning.compiled_model import CompiledModel
from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch, smallest_sizes
from minbuild.verify.differential import PACES, Pace
from minbuild.verify.script import Action, TestScript

GRAPHS = {"train": "train", "train_and_update": "train", "eval": "eval"}
GRAPHS |= {"optimizer": "optimize", "initialize": "initialize"}  # of verbs


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a step: in which graph, its number there, and sizes of the free dimensions. Where its first
    output is false, the next `skips` executions do not take place."""

    graph: str
    number: int
    step: Step
    kernel: Kernel
    sizes: Mapping[str, int]
    skips: int = 0


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


def step_script(model: CompiledModel, checkpoint: FileBytes, pace: Pace = PACES[0]) -> StepScript:
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
        arrays = seeded_batch(inputs, limits, at, number, scale=pace.scale, lowest=pace.lowest)
        for graph in ("train", "eval"):
            if graph in graphs:
                sizes[f"{graph} {number}"] = at
                batches[f"{graph} {number}"] = tuple(arrays[name] for name in graphs[graph])
    actions = [Action("create", "start"), Action("rate", repr(pace.rate))]
    actions += [Action("eval", "eval 0")] if "eval" in graphs else []
    for number in range(2):
        train = "train_and_update" if program.fused_updates else "train"
        actions += [Action(train, f"train {number}")] if "train" in graphs else [Action("copy")]
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
        graph = GRAPHS.get(action.verb)
        if graph is None:
            continue
        now = sizes.get(action.operand, now)
        skips = skipped_steps(routines[graph], plan)
        for number in step_order(routines[graph], plan, now):
            step, kernel = routines[graph].steps[number], plan.kernels[routines[graph].steps[number].kernel]
            yield Execution(graph, number, step, kernel=kernel, sizes=now, skips=skips.get(number, 0))


def skipped_steps(routine: Routine, plan: Plan) -> dict[int, int]:
    """For each step of `routine` that ends rounds of a loop early, how many steps of such a round are behind it."""
    found, ends = {}, 0
    for number in reversed(range(len(routine.steps))):
        step = routine.steps[number]
        ends = number if step.loop else ends
        if plan.kernels[step.kernel].function == skip_round_kernel.function:
            found[number] = ends - number
    return found


def step_order(routine: Routine, plan: Plan, sizes: Mapping[str, int]) -> Iterator[int]:
    """Numbers of the steps as they run where no round of a loop ends early; loops run once per sample, or as often as
    steps before them set. `routine` is one of `plan`; free dimensions have these `sizes`."""
    samples, sample, number = evaluate(routine.samples, sizes), 0, 0
    while number < len(routine.steps):
        yield number
        loop = routine.steps[number].loop
        if plan.kernels[routine.steps[number].kernel].function == set_rounds_kernel.function:
            (rounds,) = plan.tensors[routine.steps[number].args[1]].shape
            samples = evaluate(rounds, sizes)
        if loop:
            sample += 1
            if sample < samples:
                number -= loop
            else:
                sample = 0
        number += 1
