"""The measured price of a budget of RAM: training steps of the plan that fits beside those of the one without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from minbuild.codegen.library_builder import LibraryBuilder, TrimmedAndFull, build_checked
from minbuild.planning.compile import compile_artifacts
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.toolchain import find_emulator
from minbuild.verify.operator_times import time_library

_TRAIN = "train"


def with_measured_prices(
    bench: LibraryBuilder, models: Mapping[str, CompiledModel], pairs: Sequence[TrimmedAndFull]
) -> dict[str, CompiledModel]:
    """`models` by their names, those that were fitted into a budget with the measured time of a training step: in the
    first of `pairs` that runs on this machine without an emulator, beside a library that `bench` makes of the plan
    without a budget. Where either cannot be measured, the price stays an estimate."""
    here = next((pair for pair in pairs if find_emulator(pair.target) == []), None)
    if here is None:
        return dict(models)
    return {name: _measured(bench, model, here) if model.fitted else model for name, model in models.items()}


def _measured(bench: LibraryBuilder, model: CompiledModel, here: TrimmedAndFull) -> CompiledModel:
    options = replace(model.options, ram=None)
    unlimited = compile_artifacts(
        model.artifacts,
        model.checkpoint,
        model.registry,
        fixed=model.fixed,
        largest=model.largest,
        options=options,
    )
    contents = contents_of([unlimited], build_options=bench.toolchain.build_options)
    bench.stage(f"Timing the plan without a budget for {here.target}")
    library = build_checked(contents, model.registry, here.target, bench.toolchain, builds=bench.builds)
    fits, usual = (
        dict(time_library({_TRAIN: each}, built, here.target, bench.toolchain).timing.graphs).get(_TRAIN, 0.0)
        for each, built in ((model, here.trimmed), (unlimited, library))
    )
    return replace(model, measured_time=fits / usual - 1) if fits and usual else model
