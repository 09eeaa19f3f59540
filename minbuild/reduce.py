"""The whole arrow: training artifacts in, a trimmed, proven and measured trainer out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from minbuild import __version__
from minbuild.destination import check_destination, write_package
from minbuild.errors import BadInput
from minbuild.libraries import Pair, Workbench
from minbuild.package import Parts, library_path, package_files
from minbuild.planned import Model, plan_model, with_parts
from minbuild.proof import prove
from minbuild.size.measure import TargetInputs, build_report, persistent_of, uses_by_stem
from minbuild.size.report import ModelReport, SizeReport, Verification
from minbuild.toolchain import Target, find_toolchain, host_target, parse_target


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asks for. `dims` fixes free dimensions, `largest` are the sizes to make memory for by
    default; `check_loss` makes training steps refuse a loss that is not finite; `parts` are those of emit.PARTS to
    have, `export_outputs` what exported inference models give."""

    artifacts: Path
    out: Path
    targets: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)
    cxx: str | None = None
    cmake_toolchain: Path | None = None
    reference: Path | None = None
    ops_folders: tuple[Path, ...] = ()
    check_loss: bool = False
    parts: tuple[str, ...] = ()
    export_outputs: tuple[str, ...] = ()


class Listener(Protocol):
    """Who hears how the work goes on."""

    def stage(self, text: str) -> None:
        """What is being done now."""

    def detail(self, text: str) -> None:
        """One line for those who want to know everything."""

    def note(self, text: str) -> None:
        """Something the user must see."""


def reduce(request: Request, listener: Listener) -> SizeReport:
    """Do everything the request asks for; `request.out` is written last, all or nothing. Raises
    MinbuildError."""
    check_destination(request.out, request.artifacts)
    toolchain = find_toolchain(request.cxx, request.cmake_toolchain)
    targets = wanted_targets(request.targets)
    listener.stage(f"Reading {request.artifacts}")
    model = plan_model(
        request.artifacts,
        request.dims,
        request.largest,
        request.ops_folders,
        listener.detail,
        checks_loss=request.check_loss,
    )
    model = with_parts(model, request.parts, request.export_outputs)
    for note in (*model.bundle.notes, _memory_line(model)):
        listener.note(note)
    cmake = request.cmake_toolchain is not None
    bench = Workbench(model, toolchain, cmake, listener.stage, listener.detail)
    pairs = tuple(bench.pair(target) for target in targets)
    verifications = prove(bench, pairs, request.reference, listener.note)
    listener.stage("Measuring")
    report = measure(model, pairs, verifications)
    listener.stage(f"Writing {request.out}")
    write_package(request.out, package_files(_parts(model, pairs, report)))
    return report


def wanted_targets(names: Sequence[str]) -> tuple[Target, ...]:
    """The targets by name, this machine's without any. Raises BadInput."""
    targets = tuple(dict.fromkeys(parse_target(name) for name in names)) or (host_target(),)
    for target in targets:
        if target.traits.format == "macho":
            raise BadInput(
                f"--target {target}: libraries of {target.traits.os} cannot be measured yet, so there is no "
                "report of them. Choose a Linux target."
            )
    return targets


def _memory_line(model: Model) -> str:
    largest = max(model.arenas, key=lambda arena: arena.peak)
    over = (
        f", {100 * (largest.peak / largest.bound - 1):.1f} % above the least possible"
        if largest.bound
        else ""
    )
    at = ", ".join(f"{symbol} {size}" for symbol, size in model.largest.items())
    return f"Memory for temporaries{f' at {at}' if at else ''}: {largest.peak:,} bytes{over}"


def measure(model: Model, pairs: Sequence[Pair], verifications: Sequence[Verification]) -> SizeReport:
    """The report on all targets."""
    inputs = [
        TargetInputs(
            target=str(pair.target),
            trimmed=pair.trimmed.measured,
            full=pair.full.measured,
            toolchain=pair.trimmed.built.toolchain,
            flags=_flags(pair.trimmed.built.commands[0]),
            verification=verification,
            files=(("Library", library_path(pair.target)),),
        )
        for pair, verification in zip(pairs, verifications, strict=True)
    ]
    bundle, plan = model.bundle, model.plan
    facts = ModelReport(
        name=model.name,
        minbuild=__version__,
        files=tuple(sorted(bundle.digests.items())),
        sizes=tuple(model.largest.items()),
        arenas=model.arenas,
        persistent=persistent_of(plan),
        plan_bytes=len(model.plan_bytes),
        checkpoint_bytes=len(model.checkpoint),
        kernels=len(plan.kernels),
        full_kernels=len(model.registry.all_kernels()),
        notes=bundle.notes,
    )
    return build_report(facts, uses_by_stem(plan, bundle.graphs), inputs)


def _flags(command: str) -> tuple[str, ...]:
    """What follows the program's name in the compile command, without the names of files."""
    words = command.split()
    return (
        tuple(w for w in words[: words.index("-c")] if w.startswith("-")) if "-c" in words else tuple(words)
    )


def _parts(model: Model, pairs: Sequence[Pair], report: SizeReport) -> Parts:
    return Parts(
        model.program,
        model.registry,
        model.largest,
        model.fixed,
        model.bundle.digests,
        pairs[0].trimmed.sources,
        {pair.target: pair.trimmed.built for pair in pairs},
        model.plan_bytes,
        model.checkpoint,
        report,
        model.mold,
    )
