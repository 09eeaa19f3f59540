"""The measured price of a budget of RAM: training steps of the plan that fits beside those of the one without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from minbuild.codegen.library_builder import BuiltLibrary, LibraryBuilder, TrimmedAndFull, build_checked
from minbuild.errors import MinbuildError, VerificationFailed
from minbuild.ir.ram_price import RamPrice
from minbuild.planning.compile import compile_artifacts
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.library_contents import LibraryContents
from minbuild.toolchain import Target, Toolchain, find_emulator, host_target
from minbuild.verify.differential import PACES, Pace
from minbuild.verify.operator_times import read_times, rounds_within, timed_script
from minbuild.verify.prove import default_toolchain
from minbuild.verify.script_runner import time_steps

_TRAIN = "train"
_TURNS = 5  # of both plans, one after the other: the shortest time of each counts
_FEWEST_ROUNDS = 2  # of a turn
_NANOSECONDS = 200_000_000  # of a turn of one plan, about
_SECONDS = 10.0  # of all turns but the first
_LONGEST = 120.0  # seconds of a run; the price stays an estimate where that does not suffice


@dataclass(frozen=True, slots=True)
class _Here:
    """The machine that times steps: a target whose programs run on it, its toolchain, and the library of the package
    where that was built for it."""

    target: Target
    toolchain: Toolchain
    cmake: bool
    library: BuiltLibrary | None


@dataclass(slots=True)
class _Timed:
    """A plan with the library that runs it, and the shortest time of each step so far."""

    model: CompiledModel
    library: BuiltLibrary
    nanoseconds: np.ndarray | None = None

    @property
    def step(self) -> float:
        """Nanoseconds of a training step."""
        return 0.0 if self.nanoseconds is None else float(self.nanoseconds.sum())

    def run(self, here: _Here, pace: Pace, most: float) -> None:
        """Take training steps on `here` with batches of `pace`: as many as take about `most` nanoseconds. Raises
        MinbuildError."""
        model, shortest = self.model, self.nanoseconds
        rounds = _FEWEST_ROUNDS
        if shortest is not None:
            one = timed_script(model, pace, 1, (_TRAIN,))
            rounds = max(rounds, rounds_within(most, self.step, one, model))
        script = timed_script(model, pace, rounds, (_TRAIN,))
        reply = time_steps(
            script, model.plan_bytes, self.library, here.target, here.toolchain, timeout=_LONGEST
        )
        found = read_times(reply, script, model, self.library, str(here.target)).graphs[_TRAIN]
        self.nanoseconds = found if shortest is None else np.minimum(found, shortest)


def with_measured_prices(
    bench: LibraryBuilder,
    models: Mapping[str, CompiledModel],
    pairs: Sequence[TrimmedAndFull],
    note: Callable[[str], None],
) -> dict[str, CompiledModel]:
    """`models` by their names, those whose plan a budget of RAM changed with the measured time of a training step.

    The first of `pairs` that runs on this machine without an emulator takes the steps, or the library that `bench`
    makes of the same contents for this machine, beside one of the plan without a budget. `note` receives a line for
    each: the measured price, or the reason why it stays an estimate."""
    measured = dict(models)
    for name, model in models.items():
        price = model.ram_price
        if price is None or not model.usual_ram or all(r.name != _TRAIN for r in model.plan.routines):
            continue
        prefix = f"{name}: " if len(models) > 1 else ""
        try:
            here = _here(bench, pairs)
            added = _added_time(bench, model, here)
        except MinbuildError as error:
            note(f"{prefix}The price of the budget of RAM was not measured. {error}")
            continue
        measured[name] = replace(model, measured_time=added)
        others = ", ".join(str(pair.target) for pair in pairs)
        instead = "" if here.library else f" ({here.target} in place of {others})"
        note(f"{prefix}{_sentence(price, added, instead, model.fitted is not None)}")
    return measured


def _sentence(price: RamPrice, added: float, instead: str, estimated: bool) -> str:
    estimate = f", {1 + price.added_time:.2f} times by estimate" if estimated else ""
    return (
        f"RAM fitted to the budget: {price.ram:,} bytes instead of {price.unlimited:,}. Measured on this machine"
        f"{instead}: a training step takes {1 + added:.2f} times as long{estimate}"
    )


def _here(bench: LibraryBuilder, pairs: Sequence[TrimmedAndFull]) -> _Here:
    """Raises BadInput where no library can be built for this machine."""
    pair = next((pair for pair in pairs if find_emulator(pair.target) == []), None)
    if pair is not None:
        return _Here(pair.target, bench.toolchain, bench.cmake, pair.trimmed)
    return _Here(host_target(), default_toolchain(bench), False, None)


def _added_time(bench: LibraryBuilder, model: CompiledModel, here: _Here) -> float:
    """The share that a training step of `model` takes longer than without a budget. Raises MinbuildError."""
    bench.stage(f"Building the trainer without the budget of RAM for {here.target}, to time both")
    usual = compile_artifacts(
        model.artifacts,
        model.checkpoint,
        model.registry,
        fixed=model.fixed,
        largest=model.largest,
        options=replace(model.options, ram=None),
    )

    def built(contents: LibraryContents) -> BuiltLibrary:
        return build_checked(
            contents, model.registry, here.target, here.toolchain, cmake=here.cmake, builds=bench.builds
        )

    ours = here.library or built(bench.contents)
    theirs = built(contents_of([usual], build_options=bench.toolchain.build_options))
    sides = _Timed(model, ours), _Timed(usual, theirs)
    bench.stage(f"Timing training steps with and without the budget of RAM on {here.target}")
    _time(sides, here, bench.detail)
    fits, without = sides
    return fits.step / max(without.step, 1.0) - 1


def _time(sides: Sequence[_Timed], here: _Here, detail: Callable[[str], None]) -> None:
    """Let both `sides` take training steps on `here`, in turns, with a line to `detail` for each turn. Raises
    MinbuildError."""
    pace = _first_turn(sides, here)
    if _FEWEST_ROUNDS * sum(side.step for side in sides) > 1e9 * _SECONDS:
        return
    begun = monotonic()  # the first turn may have built programs
    for turn in range(2, _TURNS + 1):
        before = monotonic()
        for side in sides:
            side.run(here, pace, _NANOSECONDS)
        fits, usual = (f"{side.step / 1e6:,.3f} ms" for side in sides)
        detail(f"turn {turn} of {_TURNS}: a training step takes {fits}, {usual} without the budget")
        now = monotonic()
        if now - begun + (now - before) > _SECONDS:
            return


def _first_turn(sides: Sequence[_Timed], here: _Here) -> Pace:
    """The first of PACES whose batches both `sides` take. Raises MinbuildError."""
    for pace in PACES:
        try:
            for side in sides:
                side.run(here, pace, 0)
            return pace
        except VerificationFailed:  # such as a loss that is not finite, which ends a step
            if pace == PACES[-1]:
                raise
    raise AssertionError("there are paces")
