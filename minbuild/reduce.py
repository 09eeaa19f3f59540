"""The whole arrow: training artifacts in, a trimmed, proven and measured trainer out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from minbuild import __version__
from minbuild.artifacts import load_bundle
from minbuild.artifacts.checkpoint import read_checkpoint, write_checkpoint
from minbuild.artifacts.files import read_file
from minbuild.destination import check_destination, write_package
from minbuild.dims import symbols_in
from minbuild.emit import Contents, emit_sources, everything
from minbuild.errors import BadInput, VerificationFailed
from minbuild.model import Binary, Bundle, Plan, Program
from minbuild.ops import Registry, registry
from minbuild.package import Parts, cmake_files, library_path, package_files
from minbuild.passes import optimize
from minbuild.passes.lower import lower
from minbuild.passes.memory import buffer_sizes, lower_bound, skyline
from minbuild.passes.plan import build_plan, peak_bytes
from minbuild.plan_format import encode_plan
from minbuild.reference import LIMIT, check, deviations, read_reference, reference_trial
from minbuild.replay import Trial
from minbuild.size.elf import read_binary
from minbuild.size.measure import Build, TargetInputs, build_report, persistent_of, uses_by_stem
from minbuild.size.owners import from_archive
from minbuild.size.report import Arena, ModelReport, SizeReport, Verification
from minbuild.toolchain import (
    Built,
    Target,
    Toolchain,
    build_library,
    check_link,
    find_toolchain,
    host_target,
    parse_target,
)
from minbuild.verify import TRIMMED_GARBAGE, Proof, prove_equal, prove_foreign, run_trial, seeded_trial

DEFAULT_LARGEST = 32  # of free dimensions


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asks for. `dims` fixes free dimensions, `largest` are the sizes to make memory for by default."""

    artifacts: Path
    out: Path
    targets: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)
    cxx: str | None = None
    cmake_toolchain: Path | None = None
    reference: Path | None = None
    ops_folders: tuple[Path, ...] = ()


class Listener(Protocol):
    """Who hears how the work goes on."""

    def stage(self, text: str) -> None:
        """What is being done now."""

    def detail(self, text: str) -> None:
        """One line for those who want to know everything."""

    def note(self, text: str) -> None:
        """Something the user must see."""


@dataclass(frozen=True, slots=True)
class Model:
    """Everything known before a compiler runs."""

    bundle: Bundle
    registry: Registry
    program: Program  # as lowered
    plan: Plan
    plan_bytes: bytes
    checkpoint: bytes
    largest: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Libraries:
    """Both builds for one target."""

    target: Target
    trimmed: Built
    full: Built


def reduce(request: Request, listener: Listener) -> SizeReport:
    """Do everything the request asks for; `request.out` is written last, all or nothing. Raises MinbuildError."""
    check_destination(request.out, request.artifacts)
    toolchain = find_toolchain(request.cxx, request.cmake_toolchain)
    targets = wanted_targets(request.targets)
    listener.stage(f"Reading {request.artifacts}")
    model = plan_model(request, listener)
    listener.note(_memory_line(model))
    contents = Contents(
        model.plan.kernels, frozenset(model.plan.features), bool(model.plan.symbols), digest=_digest(model.bundle)
    )
    sources = emit_sources(contents, model.registry)
    build = _Builder(toolchain, request.cmake_toolchain is not None, listener, model.registry)
    libraries = tuple(build.both(target, sources) for target in targets)
    binaries = tuple(_checked_binaries(each, model) for each in libraries)
    verifications = _prove(request, model, libraries, build, sources, listener)
    listener.stage("Measuring")
    report = _report(model, libraries, binaries, verifications, sources, build.full_sources)
    parts = Parts(
        model.program,
        model.registry,
        model.largest,
        request.dims,
        model.bundle.digests,
        sources,
        {each.target: each.trimmed for each in libraries},
        model.plan_bytes,
        model.checkpoint,
        report,
    )
    files = package_files(parts)
    listener.stage(f"Writing {request.out}")
    write_package(request.out, files)
    return report


def wanted_targets(names: Sequence[str]) -> tuple[Target, ...]:
    """The targets by name, this machine's without any. Raises BadInput."""
    targets = tuple(dict.fromkeys(parse_target(name) for name in names)) or (host_target(),)
    for target in targets:
        if not target.traits.is_elf:
            raise BadInput(
                f"--target {target}: libraries of {target.traits.os} cannot be measured yet, so there is no report of "
                "them. Choose a Linux target."
            )
    return targets


def plan_model(request: Request, listener: Listener) -> Model:
    """Artifacts -> everything known before a compiler runs."""
    bundle = load_bundle(request.artifacts)
    for note in bundle.notes:
        listener.note(note)
    operators = registry(request.ops_folders)
    _check_names("--dim", request.dims, _free_dimensions(bundle))
    program = lower(bundle, operators, request.dims)
    _check_names("--max", request.largest, program.symbols)
    plan = build_plan(optimize(program, operators, listener.detail), operators)
    largest = {s: request.largest.get(s, DEFAULT_LARGEST) for s in plan.symbols}
    checkpoint = _checkpoint_bytes(request.artifacts, bundle)
    return Model(bundle, operators, program, plan, encode_plan(plan, largest), checkpoint, largest)


def _free_dimensions(bundle: Bundle) -> tuple[str, ...]:
    graphs = [bundle.training] + ([bundle.evaluation] if bundle.evaluation else [])
    dims = [d for g in graphs for t in g.inputs.values() for d in t.shape or ()]
    return tuple(sorted({name for d in dims for name in symbols_in(d)}))


def _check_names(option: str, given: Mapping[str, int], free: Sequence[str]) -> None:
    """Only free dimensions can be given a size. Raises BadInput."""
    unknown = sorted(set(given) - set(free))
    if unknown:
        there = f"Free dimensions are: {', '.join(free)}." if free else "This model has no free dimensions."
        raise BadInput(f"{option} {unknown[0]}={given[unknown[0]]}: the model has no such free dimension. {there}")


def _checkpoint_bytes(artifacts: Path, bundle: Bundle) -> bytes:
    """The checkpoint as one file: the user's own bytes, unless its parameters are in a second file."""
    name = next(n for n in bundle.digests if not n.endswith(".onnx"))
    data = read_file(artifacts / name)
    try:
        read_checkpoint(data)
    except BadInput:
        return write_checkpoint(bundle.checkpoint)
    return data


def _digest(bundle: Bundle) -> str:
    return f"the model with sha256 {bundle.digests[bundle.training.source][:16]}"


def _memory_line(model: Model) -> str:
    peak, bound = peak_bytes(model.plan, model.largest)
    over = f", {100 * (peak - bound) / bound:.1f} % above the least possible {bound:,}" if bound else ""
    at = ", ".join(f"{s} {n}" for s, n in model.largest.items())
    return f"arena {peak:,} bytes{over}{f' (at {at})' if at else ''}"


# -------------------------------------------------------------------------------------------------- building


class _Builder:
    """Builds libraries with one toolchain. The full sources are emitted once."""

    def __init__(self, toolchain: Toolchain, cmake: bool, listener: Listener, operators: Registry) -> None:
        self.toolchain = toolchain
        self.cmake = cmake
        self.listener = listener
        self.full_contents = everything(operators)
        self.full_sources = emit_sources(self.full_contents, operators)

    def library(self, sources: Mapping[str, bytes], target: Target) -> Built:
        if self.cmake:  # other toolchains do not read them, and the same sources are found in the cache
            sources = {**sources, **cmake_files(sources, sample=False)}
        return build_library(sources, target, self.toolchain, progress=self.listener.detail)

    def both(self, target: Target, sources: Mapping[str, bytes]) -> Libraries:
        self.listener.stage(f"Building the trainer for {target}")
        trimmed = self.library(sources, target)
        self.listener.stage(f"Building the full trainer for {target} to compare with (kept for the next time)")
        return Libraries(target, trimmed, self.library(self.full_sources, target))


def _checked_binaries(libraries: Libraries, model: Model) -> tuple[Binary, Binary]:
    """Both libraries read back, each found to hold its kernels and nothing else. Raises ToolchainFailed."""
    binaries = []
    functions = tuple(model.registry.functions)
    for built, kernels in (
        (libraries.trimmed, model.plan.kernels),
        (libraries.full, model.registry.all_kernels()),
    ):
        binary = read_binary(library_path(libraries.target), str(libraries.target), built.shared, built.twin)
        check_link(
            selected=[k.symbol for k in kernels],
            kernels=functions,
            symbols=[s.name for s in binary.symbols],
            exports=binary.exports,
            imports=binary.imports,
        )
        binaries.append(binary)
    return binaries[0], binaries[1]


# --------------------------------------------------------------------------------------------------- proving


def _prove(
    request: Request,
    model: Model,
    libraries: Sequence[Libraries],
    build: _Builder,
    sources: Mapping[str, bytes],
    listener: Listener,
) -> tuple[Verification | None, ...]:
    """What was proven about each target. Targets of this machine are run as they are; what others compute is compared with
    what this machine's build does."""
    trial = seeded_trial(model.program, model.plan, _proving_checkpoint(model), model.registry)
    try:
        host = host_target().name
    except BadInput as error:
        return tuple(Verification(f"not proven: {error}") for _ in libraries)
    proofs: dict[Target, Proof] = {}
    verifications = []
    here = next((each for each in libraries if each.target.name == host), None)
    if here is None:
        here = build.both(host_target(), sources)
    for each in (here, *(e for e in libraries if e.target.name == host and e is not here)):
        listener.stage(f"Proving the trainer for {each.target}")
        proofs[each.target] = prove_equal(trial, model.plan_bytes, each.trimmed.shared, each.full.shared)
    judged = _judge(request, model, here.trimmed, listener) if request.reference else None
    for each in libraries:
        if each.target in proofs:
            verifications.append(_joined(proofs[each.target].text, judged))
        else:
            listener.stage(f"Proving the trainer for {each.target}")
            verifications.append(Verification(_foreign(trial, model, each, proofs[here.target], build)))
    return tuple(verifications)


def _foreign(trial: Trial, model: Model, libraries: Libraries, host: Proof, build: _Builder) -> str:
    archive, target = libraries.trimmed.archive, libraries.target
    return prove_foreign(trial, model.plan_bytes, archive, target, build.toolchain, host.results)


def _proving_checkpoint(model: Model) -> bytes:
    return model.checkpoint


def _judge(request: Request, model: Model, built: Built, listener: Listener) -> Verification:
    """The trimmed trainer against a recorded trajectory. Raises VerificationFailed above the limit."""
    assert request.reference is not None
    listener.stage(f"Comparing with {request.reference}")
    reference = read_reference(request.reference)
    trial = reference_trial(reference, model.program, model.checkpoint)
    found = deviations(
        reference, run_trial("trimmed build", trial, built.shared, model.plan_bytes, TRIMMED_GARBAGE)
    )
    text, worst = check(reference, found), max((d.noise for d in found), default=0.0)
    listener.note(f"worst deviation from {request.reference.name} in units of its noise: {text}")
    if not worst <= LIMIT:
        raise VerificationFailed(
            f"--reference {request.reference}: the trainer deviates from it by {worst:.3g} times its noise, allowed are "
            f"{LIMIT:g}: {text}. Check that it was recorded with these artifacts; if it was, please report this text."
        )
    return Verification(f"It follows the reference ({text}, in units of its noise).", worst)


def _joined(text: str, judged: Verification | None) -> Verification:
    return Verification(text if judged is None else f"{text} {judged.text}", judged.worst if judged else None)


# ------------------------------------------------------------------------------------------------- measuring


def _report(
    model: Model,
    libraries: Sequence[Libraries],
    binaries: Sequence[tuple[Binary, Binary]],
    verifications: Sequence[Verification | None],
    sources: Mapping[str, bytes],
    full_sources: Mapping[str, bytes],
) -> SizeReport:
    full_kernels = model.registry.all_kernels()
    inputs = []
    for each, (trimmed, full), verification in zip(libraries, binaries, verifications, strict=True):
        inputs.append(
            TargetInputs(
                target=str(each.target),
                trimmed=Build(
                    trimmed, from_archive("libminbuild.a", each.trimmed.archive, sources), model.plan.kernels
                ),
                full=Build(full, from_archive("libminbuild.a", each.full.archive, full_sources), full_kernels),
                toolchain=each.trimmed.toolchain,
                flags=tuple(each.trimmed.commands[0].split()),
                verification=verification,
                files=(("Library", library_path(each.target)),),
            )
        )
    bundle = model.bundle
    graphs = [g for g in (bundle.training, bundle.evaluation, bundle.optimizer) if g is not None]
    return build_report(_facts(model, len(full_kernels)), uses_by_stem(model.plan, graphs), inputs)


def _facts(model: Model, full_kernels: int) -> ModelReport:
    plan, sizes = model.plan, model.largest
    arenas = []
    for routine in plan.routines:
        each = buffer_sizes(routine.buffers, sizes)
        arenas.append(Arena(routine.name, skyline(routine.buffers, each)[1], lower_bound(routine.buffers, each)))
    return ModelReport(
        name=model_name(model.bundle),
        minbuild=__version__,
        files=tuple(sorted(model.bundle.digests.items())),
        sizes=tuple(sizes.items()),
        arenas=tuple(arenas),
        persistent=persistent_of(plan),
        plan_bytes=len(model.plan_bytes),
        checkpoint_bytes=len(model.checkpoint),
        kernels=len(plan.kernels),
        full_kernels=full_kernels,
        notes=model.bundle.notes,
    )


def model_name(bundle: Bundle) -> str:
    """What the artifacts' common prefix calls the model; folders may be called anything."""
    return bundle.training.source.removesuffix("training_model.onnx").rstrip("_-. ") or "trainer"


