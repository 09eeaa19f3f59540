"""Times of operators: a trimmed library runs training and evaluation steps with a clock around every kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from minbuild.codegen.library_builder import BuiltLibrary, LibraryBuilder, TrimmedAndFull
from minbuild.errors import BadInput, MinbuildError, VerificationFailed
from minbuild.ir import Plan, Routine, Step
from minbuild.ir.dims import evaluate
from minbuild.ir.operator_times import OperatorTime, OperatorTimes, Timing
from minbuild.ops import Registry
from minbuild.planning.arena.layout import aligned, buffer_sizes
from minbuild.planning.compiled_model import CompiledModel
from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch
from minbuild.toolchain import Target, Toolchain, find_emulator, host_target
from minbuild.verify.differential import PACES, Pace
from minbuild.verify.processor import machine_name
from minbuild.verify.prove import default_toolchain, of_this_machine, starting_point
from minbuild.verify.script import Action, TestScript
from minbuild.verify.script_runner import time_steps
from minbuild.verify.step_script import GRAPHS, skipped_steps, step_order

_FIRST_ROUNDS, _LEAST_ROUNDS, _MOST_ROUNDS = 3, 5, 300
_NANOSECONDS = 1_000_000_000  # of all rounds together, about
_MOST_BYTES = 1 << 28  # of a script and of a reply: batches and steps repeat in every round
_RECORD = np.dtype([("row", "<u4"), ("nanoseconds", "<u8")])
_SKIPS = np.uint32(1 << 31)  # in the row of a step that ended a round
_TRAIN, _EVAL, _OPTIMIZE = "train", "eval", "optimize"
_TIMED = (_TRAIN, _EVAL, _OPTIMIZE)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Nanoseconds of each step of each graph in one run, the fastest of `runs`; the peak in operations a nanosecond."""

    graphs: Mapping[str, np.ndarray]
    runs: int
    peak: float


def time_all(
    bench: LibraryBuilder, models: Mapping[str, CompiledModel], pairs: Sequence[TrimmedAndFull]
) -> tuple[OperatorTimes, ...]:
    """Times of the operators of `models`, by their names, for each of `pairs`: of its trimmed library where that runs
    on this machine without an emulator, else of the one that `bench` builds for this machine. Several models run one
    after the other and are added up. What cannot be measured has the reason in place of figures."""
    here = next((pair for pair in pairs if find_emulator(pair.target) == []), None)
    toolchain = bench.toolchain
    if here is None:
        try:
            here = of_this_machine(bench, host_target())
        except BadInput as error:
            return tuple(OperatorTimes(Timing(str(pair.target), reason=str(error))) for pair in pairs)
        toolchain = default_toolchain(bench)
    found: dict[Target, OperatorTimes] = {}
    for pair in [p for p in pairs if find_emulator(p.target) == []] or [here]:
        bench.stage(f"Timing operators for {pair.target}")
        found[pair.target] = time_library(models, pair.trimmed, pair.target, toolchain)
    return tuple(found.get(pair.target, found[here.target]) for pair in pairs)


def time_library(
    models: Mapping[str, CompiledModel], library: BuiltLibrary, target: Target, toolchain: Toolchain
) -> OperatorTimes:
    """Times of the operators of `models` in `library`, built by `toolchain` for `target`, which runs on this machine,
    or the reason why there are none."""
    try:
        measured = {name: _measure(model, library, target, toolchain) for name, model in models.items()}
    except MinbuildError as error:
        return OperatorTimes(Timing(str(target), reason=str(error)))
    graphs: dict[str, float] = {}
    sums: dict[str, _Sums] = defaultdict(_Sums)
    for name, model in models.items():
        prefix = f"{name}: " if len(models) > 1 else ""
        for graph, nanoseconds in measured[name].graphs.items():
            graphs[prefix + graph] = round(float(nanoseconds.sum()) / 1e6, 6)
        _add(sums, model, measured[name])
    timing = Timing(
        str(target),
        machine_name(),
        min(each.runs for each in measured.values()),
        tuple(graphs.items()),
        round(max(each.peak for each in measured.values()), 3),
    )
    return OperatorTimes(timing, {stem: each.result() for stem, each in sorted(sums.items())})


@dataclass(slots=True)
class _Work:
    """Nanoseconds of steps, and of those whose multiplications are known, with these."""

    nanoseconds: float = 0
    counted: float = 0
    multiplications: float = 0

    def add(self, nanoseconds: float, multiplications: float) -> None:
        self.nanoseconds += nanoseconds
        if multiplications:
            self.counted += nanoseconds
            self.multiplications += multiplications


@dataclass(slots=True)
class _Sums:
    """Sums over the steps of one operator; `live` is the most bytes of a step."""

    train: _Work = field(default_factory=_Work)
    evaluation: _Work = field(default_factory=_Work)
    live: int = 0

    def result(self) -> OperatorTime:
        rated = self.train if self.train.counted else self.evaluation
        return OperatorTime(
            round(self.train.nanoseconds / 1e6, 6),
            round(self.evaluation.nanoseconds / 1e6, 6),
            round(2 * rated.multiplications / rated.counted, 3) if rated.counted else None,
            self.live,
        )


def _add(sums: dict[str, _Sums], model: CompiledModel, measured: _Measured) -> None:
    """Adds the steps of `model` to the sums of their operators."""
    for routine in model.plan.routines:
        live = live_bytes(routine, model.largest)
        for step, bytes_ in zip(routine.steps, live, strict=True):
            operator = sums[model.plan.kernels[step.kernel].stem]
            operator.live = max(operator.live, bytes_)
        nanoseconds = measured.graphs.get(routine.name)
        if nanoseconds is None:
            continue
        runs = np.bincount(list(step_order(routine, model.plan, model.largest)), minlength=len(routine.steps))
        for step, took, count in zip(routine.steps, nanoseconds.tolist(), runs.tolist(), strict=True):
            operator = sums[model.plan.kernels[step.kernel].stem]
            work = multiplications(step, model.plan, model.registry, model.largest)
            if routine.name == _EVAL:
                operator.evaluation.add(took, work * count)
            elif routine.name in (_TRAIN, _OPTIMIZE):
                operator.train.add(took, work * count)


def live_bytes(routine: Routine, sizes: Mapping[str, int]) -> list[int]:
    """Bytes of the buffers that are live in each step of `routine`, at these `sizes` of the free dimensions."""
    change = [0] * (len(routine.steps) + 1)
    for buffer, size in zip(routine.buffers, buffer_sizes(routine.buffers, sizes), strict=True):
        change[buffer.first] += aligned(size)
        change[buffer.last + 1] -= aligned(size)
    return list(accumulate(change))[:-1]


def multiplications(step: Step, plan: Plan, registry: Registry, sizes: Mapping[str, int]) -> int:
    """The multiplications of one run of `step` of `plan` at these `sizes`, 0 where its kernel, a function of
    `registry`, does not count them."""
    count = registry.functions[plan.kernels[step.kernel].function].work
    if count is None:
        return 0
    shapes = [tuple(plan.tensors[arg].shape) if arg >= 0 else () for arg in step.args]
    return evaluate(count(step.params, shapes), sizes)


def _measure(model: CompiledModel, library: BuiltLibrary, target: Target, toolchain: Toolchain) -> _Measured:
    """The times of `library`, built by `toolchain` for `target`. Raises VerificationFailed and ToolchainFailed."""
    for pace in PACES:
        try:
            first = _run(model, library, target, toolchain, pace=pace, rounds=_FIRST_ROUNDS)
            break
        except VerificationFailed:  # such as a loss that is not finite, which ends a step
            if pace == PACES[-1]:
                raise
    script = timed_script(model, pace, 1)
    round_time = sum(float(times.sum()) for times in first.graphs.values())
    rounds = rounds_within(_NANOSECONDS, round_time, script, model)
    second = _run(model, library, target, toolchain, pace=pace, rounds=max(_LEAST_ROUNDS, rounds))
    graphs = {name: np.minimum(times, first.graphs[name]) for name, times in second.graphs.items()}
    return _Measured(graphs, first.runs + second.runs, max(first.peak, second.peak))


def rounds_within(nanoseconds: float, round_time: float, script: TestScript, model: CompiledModel) -> int:
    """As many rounds as take about these `nanoseconds` where one takes a `round_time`, and fit into files. `script` is
    one round of `model`."""
    size = sum(a.nbytes for arrays in script.batches.values() for a in arrays)
    size = max(size, sum(_RECORD.itemsize * len(order) for _, order in _runs(script, model)))
    return min(_MOST_ROUNDS, int(nanoseconds / max(round_time, 1)), _MOST_BYTES // max(size, 1))


def timed_script(
    model: CompiledModel, pace: Pace, rounds: int, timed: Collection[str] = _TIMED
) -> TestScript:
    """`rounds` of evaluation, a training step, an optimizer step and a reset of the gradients, as far as there are
    graphs for it in `model` and `timed` names them, on one seeded batch of the sizes that memory is planned for. The
    learning rate is 0: updates take their time, and numbers stay as they are. `pace` scales the batch."""
    program, plan = model.program, model.plan
    graphs = {p.name: p.inputs for p in program.procedures if p.name in timed}
    arrays = seeded_batch(
        inputs_of(program),
        index_limits(program, model.registry),
        model.largest,
        0,
        scale=pace.scale,
        lowest=pace.lowest,
    )
    batches = {g: tuple(arrays[n] for n in graphs[g]) for g in (_TRAIN, _EVAL) if g in graphs}
    each = [Action(_EVAL, _EVAL)] if _EVAL in graphs else []
    if _TRAIN in graphs:
        each.append(Action("train_and_update" if program.fused_updates else "train", _TRAIN))
    else:
        each.append(Action("copy"))
    if _OPTIMIZE in graphs:
        each += [Action("optimizer"), Action("reset")]
    elif _TRAIN in graphs and not program.fused_updates:
        each.append(Action("reset"))
    actions = (Action("create", "start"), Action("rate", "0.0"), *(each * rounds))
    sizes = tuple(model.largest[name] for name in plan.symbols)
    return TestScript(sizes, batches, {"start": model.compact_checkpoint or starting_point(model)}, actions)


def _runs(script: TestScript, model: CompiledModel) -> Iterator[tuple[str, list[int]]]:
    """Every run of a graph in `script`: its name, and numbers of its steps in the order in which they run."""
    routines = {routine.name: routine for routine in model.plan.routines}
    orders: dict[str, list[int]] = {}
    for action in script.actions:
        graph = GRAPHS.get(action.verb)
        if graph is not None:
            if graph not in orders:
                orders[graph] = list(step_order(routines[graph], model.plan, model.largest))
            yield graph, orders[graph]


def _run(
    model: CompiledModel,
    library: BuiltLibrary,
    target: Target,
    toolchain: Toolchain,
    pace: Pace,
    rounds: int,
) -> _Measured:
    script = timed_script(model, pace, rounds)
    reply = time_steps(script, model.plan_bytes, library, target, toolchain)
    return read_times(reply, script, model, library, str(target))


def read_times(
    reply: bytes, script: TestScript, model: CompiledModel, library: BuiltLibrary, label: str
) -> _Measured:
    """The shortest times of each step in `reply` to `script`. `library` ran, of the plan of `model`, on the target
    `label`. Raises VerificationFailed where other steps ran than those of the plan."""
    if len(reply) < 16:
        raise VerificationFailed(f"{label}: the runner sent no times. Please report this text.")
    operations, nanoseconds = np.frombuffer(reply, "<u8", 2).tolist()
    at, runs, fastest = 16, 0, dict[str, np.ndarray]()
    numbers = {kernel: row for row, kernel in enumerate(library.kernels)}
    routines = {routine.name: routine for routine in model.plan.routines}
    for graph, order in _runs(script, model):
        steps = routines[graph].steps
        order = _order_that_ran(order, skipped_steps(routines[graph], model.plan), reply[at:])
        size = len(order) * _RECORD.itemsize
        records = np.frombuffer(reply[at : at + size], _RECORD) if at + size <= len(reply) else None
        expected = [numbers[model.plan.kernels[steps[number].kernel]] for number in order]
        if records is None or (records["row"] & ~_SKIPS).tolist() != expected:
            raise VerificationFailed(
                f"{label}: other steps ran than those of graph {graph}. Please report this text."
            )
        at += size
        times = np.bincount(order, records["nanoseconds"].astype(np.float64), len(steps))
        fastest[graph] = np.minimum(times, fastest[graph]) if graph in fastest else times
        runs += graph == next(iter(fastest))
    return _Measured(fastest, runs, operations / max(nanoseconds, 1))


def _order_that_ran(order: list[int], skips: Mapping[int, int], reply: bytes) -> list[int]:
    """The numbers of the steps that ran: `order` without those behind ends of rounds, as `reply` begins with."""
    if not skips:
        return order
    rows = np.frombuffer(reply[: len(reply) // _RECORD.itemsize * _RECORD.itemsize], _RECORD)["row"]
    ran, left = list[int](), 0
    for number in order:
        if left:
            left -= 1
            continue
        if number in skips and len(ran) < len(rows) and rows[len(ran)] & _SKIPS:
            left = skips[number]
        ran.append(number)
    return ran
