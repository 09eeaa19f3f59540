"""Trainers for other machines compute what this machine's do: step by step within rounding, and from end to end
within what rounding makes of a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.errors import VerificationFailed
from minbuild.ir.mapped import FileBytes
from minbuild.ir.size_report import Stack, StepDeviation, Verification
from minbuild.planning.compiled_model import CompiledModel
from minbuild.toolchain import Target, Toolchain, find_emulator, why_not_run
from minbuild.verify import runner_protocol as runner
from minbuild.verify.differential import REPORT
from minbuild.verify.double_precision import DoubleRun, in_double_precision
from minbuild.verify.script import Results, TestScript
from minbuild.verify.script_runner import Watch, perform, watch
from minbuild.verify.step_script import Trace
from minbuild.verify.steps import follow_steps

# Runs that differ in rounding only: what any of them is off by, another machine may be off by a few times.
_RUNS, _MORE_RUNS = 3, 12
_TIMES = 4.0
_FLOOR = 2.0**-19  # of the largest element: what a handful of sums may be off by that no run happened to move
# Rounding that double precision shows is noise up to this part of the largest element: a loss near zero is the small
# difference of large numbers. What is off by more is no measure of anything.
_MOST_ROUNDING = 2.0**-3


@dataclass(frozen=True)
class Baseline:
    """The results of this machine, which another one's are compared with: every step, and a whole run with its
    noise."""

    model: CompiledModel
    library: BuiltLibrary
    target: Target
    toolchain: Toolchain
    trace: Trace
    script: TestScript
    expected: Results
    runs: dict[int, Results] = field(default_factory=dict)  # by seed, as they are asked for

    @cached_property
    def double(self) -> DoubleRun:
        """The run in double precision."""
        return in_double_precision(self.model, self.script, self.expected)

    def disturbed(self, seed: int) -> Results:
        """The run where every step rounds otherwise, by two units in the last place of its inputs."""
        if seed not in self.runs:
            self.runs[seed] = self._disturbed(seed)
        return self.runs[seed]

    def _disturbed(self, seed: int) -> Results:
        reply = watch(
            *(Watch.DISTURB, self.script, self.model.plan_bytes, self.library, self.target, self.toolchain),
            self.model.registry,
            seed=seed,
        )
        return runner.decode(reply, self.expected)


def not_proven(reason: str) -> Verification:
    """The verdict on a library that was not run."""
    return Verification(f"NOT PROVEN: {reason}", proven=False, reason=reason)


def prove_foreign(
    here: Baseline, library: BuiltLibrary, target: Target, toolchain: Toolchain
) -> Verification:
    """The verdict on `library`, built for another `target` by `toolchain` and run under an emulator, beside `here`, the
    results of this machine. Raises VerificationFailed when they disagree by more than rounding."""
    emulator = find_emulator(target)
    if emulator is None:
        return not_proven(why_not_run(target))
    count, worst = follow_steps(here.trace, here.model, library, target, toolchain)
    reply = perform(here.script, here.model.plan_bytes, library, target, toolchain)
    found = runner.decode(reply, here.expected)
    agreed = agreement(found, here, str(target))
    where = f"run under {Path(emulator[0]).name}" if emulator else "run as a static program"
    text = f"{where}: {_sentence(count, worst)}. {agreed}"
    return Verification(text, stack=runner.stack_of(reply), steps=count, step=worst)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The distance of a whole run from this machine's, in units of noise. The noise was measured by `runs` runs and,
    unless `left_out` gives a reason against it, by double precision."""

    units: float
    runs: int = 0
    left_out: str = ""

    def __str__(self) -> str:
        if self.units == 0:
            return "The whole run gives the same bits as this machine's build."
        off = f"The whole run is off by {self.units:.2g} times what rounding makes of it on this machine"
        if self.left_out:
            return f"{off} in {self.runs} runs (double precision is left out: {self.left_out})."
        return f"{off} in {self.runs} runs and beside double precision."


def _sentence(count: int, worst: StepDeviation | None) -> str:
    within = (
        "the same bits"
        if worst is None
        else f"the same within rounding, at most {worst.units:.2g} of what that allows (step {worst.step} of "
        f"{worst.graph}, {worst.kernel})"
    )
    return (
        f"each of {count} steps, given the inputs it had on this machine, writes {within}, and nothing else"
    )


def measure_stack(
    script: TestScript, plan: FileBytes, library: BuiltLibrary, target: Target, toolchain: Toolchain
) -> Stack | None:
    """The depth of the stack, in bytes, in each call of `script` with `library` and `plan`; None where programs of
    `target` do not run here. `toolchain` links the program. Raises VerificationFailed."""
    if find_emulator(target) is None:
        return None
    calls = (action for action in script.actions if action.verb not in ("gradients", "parameters"))
    silent = replace(script, actions=tuple(replace(action, label="") for action in calls))
    return runner.stack_of(perform(silent, plan, library, target, toolchain))


def agreement(found: Results, here: Baseline, label: str) -> Agreement:
    """The worst deviation of the results `found` on another target from those of this machine, `here`, in units of
    noise that is measured on the same batches: runs with other rounding, and double precision. `label` names the target
    in messages. Raises VerificationFailed where it is several times more than that."""
    off = _off(found, here.expected)
    if not any(off.values()):
        return Agreement(0.0)
    noise = dict.fromkeys(off, _FLOOR)
    if here.double.results is not None:
        exact = _off({**here.expected, **here.double.results}, here.expected)
        noise = {kind: max(_FLOOR, exact[kind] if exact[kind] <= _MOST_ROUNDING else 0.0) for kind in off}
    runs = 0
    # A decision that drifts in one run of many is not seen by a few.
    while runs < _RUNS or runs < _RUNS + _MORE_RUNS and any(off[k] > _TIMES * noise[k] for k in off):
        runs += 1
        moved = _off(here.disturbed(runs), here.expected)
        noise = {kind: max(noise[kind], moved[kind]) for kind in off}
    beyond = [
        f"'{kind}' by {off[kind]:.2g} of its largest element, where noise is {noise[kind]:.2g}"
        for kind in off
        if not off[kind] <= _TIMES * noise[kind]
    ]
    if beyond:
        raise VerificationFailed(
            f"{label}: every step computes the same, but the whole run deviates from this machine's by more than "
            f"{_TIMES:g} times noise: {'; '.join(beyond[:5])}. {REPORT}"
        )
    return Agreement(max(off[kind] / noise[kind] for kind in off), runs, here.double.reason)


def _off(found: Results, expected: Results) -> dict[str, float]:
    """The worst deviation of each kind of tensor, relative to the largest element of that kind: tensors that are
    zero but for rounding do not count. Infinite for NaN."""
    scales, worst = _scales(expected), dict[str, float]()
    for name, array in expected.items():
        if array.dtype.kind in "fV":
            error = np.abs(found[name].astype(np.float64) - array.astype(np.float64))
            deviation = float(np.where(np.isnan(error), np.inf, error).max(initial=0.0)) / scales[_kind(name)]
            worst[_kind(name)] = max(worst.get(_kind(name), 0.0), deviation)
    return worst


def _kind(name: str) -> str:
    return name.split("/")[0]


def _scales(results: Mapping[str, np.ndarray]) -> dict[str, float]:
    scales: dict[str, float] = {}
    for name, array in results.items():
        if array.dtype.kind in "fV":
            largest = float(np.abs(array.astype(np.float64)).max(initial=0))
            scales[_kind(name)] = max(scales.get(_kind(name), 1e-30), largest)
    return scales
