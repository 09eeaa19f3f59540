"""The whole arrow: training artifacts in, a trimmed, proven and measured trainer out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from minbuild.analysis.measure import measure, without_measured_prices
from minbuild.analysis.session_memory import session_memory
from minbuild.analysis.speed_features import speed_features
from minbuild.analysis.target_result import TargetResult, WhatIfResults
from minbuild.analysis.whatif.runner import run_what_if
from minbuild.codegen.atomic_write import check_destination, write_package
from minbuild.codegen.bindings import WASM, parse_languages
from minbuild.codegen.flavor import choose_flavor
from minbuild.codegen.integrations import bindings_of, parse_integrations
from minbuild.codegen.library_builder import LibraryBuilder, TrimmedAndFull
from minbuild.codegen.library_sizer import LibrarySizer
from minbuild.codegen.lowering_choice import choose_lowerings
from minbuild.codegen.native_arithmetic import check_halves, check_native
from minbuild.codegen.one_file import check_one_file
from minbuild.codegen.ort_abi import abi_targets, build_abi, check_abi, with_abi
from minbuild.codegen.package import PackagedModel, emit_package
from minbuild.codegen.plan_encoding_choice import choose_encoding
from minbuild.codegen.straight_choice import choose_straight
from minbuild.errors import BadInput, OverBudget, VerificationFailed
from minbuild.ir.kernel_choice import KernelChoice
from minbuild.ir.size_report import Board, SizeReport, Verification
from minbuild.ops import registry
from minbuild.options.build_options import (
    ALL,
    AUTO,
    COMPACT,
    COMPILED,
    FUSED,
    NATIVE,
    OFF,
    ON,
    ONE,
    TARGET,
    TEXT,
    BuildOptions,
)
from minbuild.options.graph_selection import EVALUATE, OPTIMIZE
from minbuild.options.plan_options import PlanOptions, Updates
from minbuild.planning.compile import compile_models
from minbuild.planning.compiled_model import UNNAMED, CompiledModel, with_compact_checkpoint, with_components
from minbuild.planning.kernel_selection import ExtraRequirements, contents_of, panel_bytes, with_kernels
from minbuild.planning.loop_variants import with_loop_variants
from minbuild.planning.size_limits import check_address_space, saving_note
from minbuild.planning.threads import step_work
from minbuild.toolchain import (
    Target,
    Toolchain,
    find_emulator,
    find_toolchain,
    host_target,
    not_applied,
    parse_target,
    why_not_run,
)
from minbuild.verify.operator_times import time_all
from minbuild.verify.prove import prove_all
from minbuild.verify.ram_price import with_measured_prices


@dataclass(frozen=True, slots=True)
class Request:
    """A build request.

    - `artifacts`: folders or files of one model, or of several models that share a library
    - `dims`: free dimensions to fix; `largest`: the largest sizes that memory is planned for
    - `components`: optional components (COMPONENTS); `export_outputs`: outputs of exported inference models
    - `extra`: kernels and types beyond those of the models
    - `analysis`: measure the size waterfall, the leave-one-out sizes and the suggestions, which take many builds
    - `time`: measure the time of operators on this machine; files of the package then have measured times
    - `bindings`: languages of the package besides C
    - `integrations`: build systems and registries that the package is laid out for (INTEGRATIONS)
    - `abi`: interface of a second library beside the trainer's own (ABIS), "" for none
    - `require_proof`: refuse a target that is NOT PROVEN
    - `force`: replace a package that holds foreign or edited files
    - `board`: flash and RAM that the report compares with
    """

    artifacts: tuple[Path, ...]
    out: Path
    targets: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)
    cxx: str | None = None
    cmake_toolchain: Path | None = None
    reference: Path | None = None
    ops_folders: tuple[Path, ...] = ()
    components: tuple[str, ...] = ()
    export_outputs: tuple[str, ...] = ()
    extra: ExtraRequirements = ExtraRequirements()  # noqa: RUF009 (frozen)
    analysis: bool = True
    time: bool = False
    bindings: tuple[str, ...] = ()
    integrations: tuple[str, ...] = ()
    abi: str = ""
    build_options: BuildOptions = BuildOptions()  # noqa: RUF009 (frozen)
    require_proof: bool = False
    force: bool = False
    board: Board | None = None


class Progress(Protocol):
    """Progress callback."""

    def stage(self, text: str) -> None:
        """A stage of the work begins."""

    def detail(self, text: str) -> None:
        """One line for --verbose."""

    def note(self, text: str) -> None:
        """One line that the user must see."""


def reduce(request: Request, progress: Progress) -> SizeReport:
    """Do everything the request asks for; `request.out` is written last, all or nothing. Raises
    MinbuildError."""
    for folder in request.artifacts:
        check_destination(request.out, folder, request.force)
    operators = registry(request.ops_folders)
    build_options = with_kernels(request.build_options, operators)
    toolchain = find_toolchain(request.cxx, request.cmake_toolchain, build_options)
    integrations = parse_integrations(request.integrations, len(request.artifacts))
    languages = parse_languages((*request.bindings, *bindings_of(integrations)), build_options.file_io == ON)
    targets = parse_targets(request.targets, languages)
    if request.abi:
        own_toolchain = request.cxx is not None or request.cmake_toolchain is not None
        check_abi(request.abi, len(request.artifacts), build_options, own_toolchain)
        abi_targets(request.abi, targets)
    if request.require_proof:
        _require_runnable(targets)
    for target in targets:
        _note_options_not_applied(toolchain, target, progress)
    progress.stage("Planning")
    planned = compile_models(
        request.artifacts,
        fixed=request.dims,
        largest=request.largest,
        ops_folders=request.ops_folders,
        log=progress.detail,
        options=replace(plan_options(build_options, targets), ram_curve=request.analysis),
    )
    add_components = with_abi if request.abi else with_components
    planned = tuple(add_components(model, request.components, request.export_outputs) for model in planned)
    if build_options.initial_checkpoint == COMPACT:
        planned = tuple(_with_compact_checkpoint(model, progress) for model in planned)
    models = dict(zip(names_of(request.artifacts, planned), planned, strict=True))
    for name, model in models.items():
        check_one_file(model, request.reference, request.abi, integrations)
        for note in (*model.artifacts.notes, *_absent(model), _memory_line(model), *_budget_line(model)):
            progress.note(_of_model(name, note, models))
        check_address_space(model.plan, model.largest, name, (str(t) for t in targets if t.traits.bits == 32))
    build_options = with_loop_variants(planned, build_options, request.extra != ExtraRequirements())
    cmake = request.cmake_toolchain is not None
    sizer = LibrarySizer(request.extra, toolchain, tuple(targets), cmake)
    encoding = choose_encoding(planned, build_options, sizer)
    flavor = choose_flavor(encoding.models, build_options, sizer)
    build_options = flavor.build_options
    planned = planned if build_options.flavor == COMPILED else encoding.models
    toolchain = toolchain.with_build_options(build_options)
    lowered = choose_lowerings(planned, build_options, sizer)
    straight = choose_straight(lowered.models, build_options, sizer)
    planned = straight.models
    models = dict(zip(models, planned, strict=True))
    notes = (*filter(None, (flavor.note or encoding.note, straight.note)), *lowered.notes)
    for note in notes:
        progress.note(note)
    contents = contents_of(planned, request.extra, progress.note, build_options)
    for name, model in models.items():
        if contents.checkpoint_writing and (text := saving_note(model.plan)):
            progress.note(_of_model(name, text, models))
    if build_options.half_arithmetic == NATIVE:
        check_halves(contents.kernels)
    builder = LibraryBuilder(
        contents, operators, toolchain, cmake=cmake, stage=progress.stage, detail=progress.detail
    )
    pairs = builder.pairs(targets)
    if build_options.half_arithmetic == NATIVE:
        check_native(pairs)
    verifications = prove_all(builder, models, pairs, request.reference, progress.note)
    if request.require_proof:
        _require_proofs(targets, verifications)
    if build_options.stack_budget != TARGET:
        _check_stack(int(build_options.stack_budget), targets, verifications, progress)
    what_if = [WhatIfResults() for _ in pairs]
    if request.analysis and not cmake:
        what_if = run_what_if(builder, pairs, planned, request.extra)
    times = time_all(builder, models, pairs) if request.time else (None,) * len(pairs)
    models = with_measured_prices(builder, models, pairs, progress.note)
    progress.stage("Measuring")
    sessions = [session_memory(planned, p.trimmed.sources, p.target, toolchain) for p in pairs]
    works = [step_work(model.executed, operators) for model in planned]
    features = [
        speed_features(
            planned, works, contents, asked=request.build_options, target=pair.target, costs=found.costs
        )
        for pair, found in zip(pairs, what_if, strict=True)
    ]
    measured = zip(pairs, verifications, what_if, times, sessions, features, strict=True)
    results = [TargetResult(*found) for found in measured]
    report = replace(
        measure(models, results, notes),
        build_options=tuple(build_options.as_text.items()),
        board=request.board,
    )
    for note in _beyond_budget(report, build_options.ram_budget):
        progress.note(note)
    # Files of a package are the same every time, unless times were asked for.
    written = report if request.time else without_measured_prices(report)
    others = _other_libraries(request, planned, builder, pairs) if request.abi else {}
    progress.stage(f"Writing {request.out}")
    package = emit_package(
        _packaged(models, written),
        contents,
        {pair.target: pair.trimmed for pair in pairs},
        written,
        bindings=languages,
        build_options=build_options,
        other_libraries=others,
        integrations=integrations,
    )
    write_package(request.out, package, request.force)
    return report


def _other_libraries(
    request: Request,
    models: Sequence[CompiledModel],
    builder: LibraryBuilder,
    pairs: Sequence[TrimmedAndFull],
) -> dict[str, bytes]:
    """Libraries with the interface that the request asks for, by their paths in the package."""
    abi = abi_targets(request.abi, [pair.target for pair in pairs])
    builder.stage(f"Building the library with the interface of {request.abi} for {', '.join(map(str, abi))}")
    artifacts = request.artifacts[0]
    folder = artifacts if artifacts.is_dir() else artifacts.parent
    files = [path for suffix in ("*.onnx", "*.ort") for path in sorted(folder.glob(suffix))]
    libraries = {pair.target: pair.trimmed for pair in pairs if pair.target in abi}
    return build_abi(models[0], libraries, builder.toolchain.build_options, files, builder.builds)


def plan_options(build_options: BuildOptions, targets: Sequence[Target]) -> PlanOptions:
    """Options of plans for `targets`, as `build_options` have them. Raises BadInput."""
    return PlanOptions(
        graphs=tuple(build_options.graphs),
        threads=_threads(build_options, targets),
        kernels=KernelChoice(packs=build_options.loop_variants != ONE),
        packs_all=build_options.packing == ALL and all(target.traits.format != "image" for target in targets),
        kernel_names=build_options.error_messages == TEXT,
        checks_loss=build_options.checks_loss,
        updates=Updates(build_options.updates == FUSED, build_options.checks_gradients),
        native_halves=build_options.half_arithmetic == NATIVE,
        ram=build_options.ram_budget,
    )


def _threads(build_options: BuildOptions, targets: Sequence[Target]) -> str:
    """The value of --threads for all targets. Raises BadInput where threads are asked for and a target has none."""
    if build_options.threads == OFF:
        return OFF
    without = {str(target): target.traits.no_threads for target in targets if target.traits.no_threads}
    if not without:
        return build_options.threads
    if build_options.threads == AUTO:
        return OFF
    target, reason = next(iter(without.items()))
    raise BadInput(
        f"--threads {build_options.threads}: libraries for {target} have no threads: {reason}. Leave the option "
        "out, or reduce for this target by itself."
    )


def _packaged(models: Mapping[str, CompiledModel], report: SizeReport) -> tuple[PackagedModel, ...]:
    """The models with their figures; a single one needs no name in the package."""
    facts = report.models or (report.model,)
    return tuple(
        PackagedModel(name if len(models) > 1 else "", model, each)
        for (name, model), each in zip(models.items(), facts, strict=True)
    )


def _require_runnable(targets: Sequence[Target]) -> None:
    """Refuse, before anything is built, targets whose programs do not run here. Raises VerificationFailed."""
    _refuse_unproven({str(t): why_not_run(t) for t in targets if find_emulator(t) is None})


def _require_proofs(targets: Sequence[Target], verifications: Sequence[Verification]) -> None:
    """Raises VerificationFailed for targets that are NOT PROVEN."""
    pairs = zip(targets, verifications, strict=True)
    _refuse_unproven({str(target): found.reason for target, found in pairs if not found.proven})


def _check_stack(
    budget: int, targets: Sequence[Target], verifications: Sequence[Verification], progress: Progress
) -> None:
    """Compare the stack that calls took with the budget, for every target that ran. Raises OverBudget."""
    over = []
    for target, found in zip(targets, verifications, strict=True):
        stack = found.stack
        if stack is None:
            progress.note(f"--stack-budget: not checked on {target}, of which no program ran here.")
        elif stack.peak > budget:
            over.append(
                f"{target}: {stack.call} takes {stack.peak:,} B of stack, --stack-budget is {budget:,} B"
            )
    if over:
        panel = panel_bytes(str(budget))
        raise OverBudget(
            f"{'; '.join(over)}. {panel:,} B of it are for matrix products, the rest is that of the kernels: give "
            "a larger budget, or leave out kernels."
        )


def _refuse_unproven(reasons: Mapping[str, str]) -> None:
    if reasons:
        found = [
            f"{target}: NOT PROVEN, which --require-proof refuses: {why}" for target, why in reasons.items()
        ]
        raise VerificationFailed("\n".join(found))


def names_of(folders: Sequence[Path], models: Sequence[CompiledModel]) -> tuple[str, ...]:
    """The names of the models: by their files, or where there are several and those have no names of their own, by
    their folders; none twice."""
    if len(models) == 1:
        return (models[0].name,)
    found: list[str] = []
    for folder, model in zip(folders, models, strict=True):
        own = folder.resolve().name if model.name == UNNAMED else model.name
        name = re.sub(r"[^\w.-]", "_", own) or UNNAMED
        clash = sum(1 for other in found if other == name or other.startswith(f"{name}-"))
        found.append(f"{name}-{clash + 1}" if clash else name)
    return tuple(found)


def parse_targets(names: Sequence[str], languages: Sequence[str] = ()) -> tuple[Target, ...]:
    """The targets by name, this machine's without any, and what `languages` cannot do without. Raises BadInput."""
    targets = tuple(dict.fromkeys(parse_target(name) for name in names)) or (host_target(),)
    if WASM in languages and not any(target.traits.format == "wasm" for target in targets):
        return (*targets, parse_target("wasm32"))
    return targets


def _note_options_not_applied(toolchain: Toolchain, target: Target, progress: Progress) -> None:
    left = not_applied(toolchain, target)
    if left:
        progress.note(f"{target}: not applied, {toolchain.describe()} has no way: {', '.join(left)}.")


def _with_compact_checkpoint(model: CompiledModel, progress: Progress) -> CompiledModel:
    """`model` with a compact initial checkpoint where its own can be one; else a note says why not."""
    try:
        return with_compact_checkpoint(model)
    except BadInput as error:
        progress.note(f"The initial checkpoint stays that of ONNX Runtime. {error}")
        return model


def _absent(model: CompiledModel) -> Iterator[str]:
    """A sentence on each graph that the trainer lacks because the artifacts do."""
    if model.artifacts.evaluation is None and EVALUATE in model.options.graphs:
        yield "No evaluation model: the trainer evaluates nothing."
    if model.artifacts.optimizer is None and OPTIMIZE in model.options.graphs:
        yield "No optimizer model: the trainer computes gradients, and updates no parameters."


def _of_model(name: str, note: str, models: Mapping[str, CompiledModel]) -> str:
    """A note on a model, with its name where there are several."""
    return f"{name}: {note}" if len(models) > 1 else note


def _budget_line(model: CompiledModel) -> Iterator[str]:
    """A line on the plan that a budget of RAM changed."""
    price = model.ram_price
    if model.fitted:
        yield model.fitted.note
    elif price and model.usual_ram:
        yield (
            f"RAM fitted to the budget: {price.ram:,} bytes instead of {price.unlimited:,}, with kernels of little "
            "scratch memory"
        )


def _beyond_budget(report: SizeReport, budget: int | None) -> Iterator[str]:
    """A note on each target where a session takes more than the `budget`, which counts a part of it."""
    counted = report.model.arena + report.model.persistent.total
    for target in report.targets:
        above = target.ram - budget if budget else 0
        if above > 0:
            text = (
                f"{target.target}: with all that --ram does not count (its tables, what a failed call restores, static "
                f"data, stacks of threads) a session takes {target.ram:,} bytes, {above:,} above the budget."
            )
            yield f"{text} Give --ram {counted - above:,} to have all of it fit" if counted > above else text


def _memory_line(model: CompiledModel) -> str:
    largest = max(model.arenas, key=lambda arena: arena.peak)
    over = (
        f", {100 * (largest.peak / largest.lower_bound - 1):.1f} % above the least for this order of steps"
        if largest.lower_bound
        else ""
    )
    at = ", ".join(f"{symbol} {size}" for symbol, size in model.largest.items())
    return f"Memory for temporaries{f' at {at}' if at else ''}: {largest.peak:,} bytes{over}"
