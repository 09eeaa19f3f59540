"""The trimmed and the full library of a target, built and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from minbuild.codegen.cmake import cmake_files
from minbuild.codegen.package_layout import library_path
from minbuild.codegen.sources import emit_sources
from minbuild.formats.detect import read_binary
from minbuild.formats.symbol_origins import Owners, from_archive
from minbuild.ir import Binary, Kernel
from minbuild.ir.mapped import FileBytes
from minbuild.ops import Registry
from minbuild.options.build_options import AUTO, OFF
from minbuild.planning.library_contents import ALIKE, ROLLBACK, LibraryContents, full_contents
from minbuild.toolchain import BuildJob, BuildOutput, Builds, Target, Toolchain, check_link


@dataclass(frozen=True)
class BuiltLibrary:
    """A library as built, as read back, the kernels that were selected for it, and its sources."""

    built: BuildOutput
    binary: Binary
    kernels: tuple[Kernel, ...]
    sources: Mapping[str, bytes]
    compiled: bool = False  # whether the plan is compiled in
    rolls_back: bool = True  # whether sessions hold a copy of what a failed call restores

    def plan_for(self, plan: FileBytes) -> FileBytes:
        """The bytes that a session is given of a plan: none where the library has it."""
        return b"" if self.compiled else plan

    @cached_property
    def owners(self) -> Owners:
        """The source file of each symbol, from the objects of the static library."""
        return from_archive("libminbuild.a", self.built.archive, self.sources)


@dataclass(frozen=True, slots=True)
class TrimmedAndFull:
    """Both libraries of one target."""

    target: Target
    trimmed: BuiltLibrary
    full: BuiltLibrary


@dataclass(frozen=True, slots=True)
class LibraryBuilder:
    """Builds libraries of the same contents with one toolchain. `stage` receives a line as each stage begins, `detail`
    a line for each step, `builds` every library that was made."""

    contents: LibraryContents
    registry: Registry
    toolchain: Toolchain
    cmake: bool
    stage: Callable[[str], None]
    detail: Callable[[str], None]
    builds: Builds = field(default_factory=Builds)

    def pair(self, target: Target) -> TrimmedAndFull:
        """Both libraries of a target. Raises ToolchainFailed, also when a library holds what was not
        selected."""
        return self.pairs((target,))[0]

    def pairs(self, targets: Sequence[Target]) -> tuple[TrimmedAndFull, ...]:
        """Both libraries of each target, all built side by side. Raises as `pair`."""
        names = ", ".join(map(str, targets))
        self.stage(f"Building the trainer for {names}, and the full one to compare with (kept for next time)")
        both = ((self.contents, self.toolchain), (self.full, _without_auto_lto(self.toolchain)))
        given = [
            (_given(contents, self.registry, toolchain, self.cmake), toolchain)
            for contents, toolchain in both
        ]
        jobs = [BuildJob(sources, target, toolchain) for target in targets for sources, toolchain in given]
        self.builds.build(jobs, self.detail)
        return tuple(TrimmedAndFull(t, *(self._library(*one, t) for one in both)) for t in targets)

    @property
    def full(self) -> LibraryContents:
        """The full library to compare with: the same numbers, down to denormals, and the same checkpoints."""
        ours = self.contents
        dense = 0 if ours.fused_updates else ours.dense  # it reads plans with separate ones, in tables
        full = full_contents(self.registry, ours.components, ours.wide, ours.threads, dense)
        return replace(
            full,
            safety=full.safety - ALIKE | ours.safety & ALIKE,
            # Parameters that fit into no other checkpoint are for wide plans.
            compact_checkpoints=ours.compact_checkpoints and ours.wide,
            one_variant=ours.one_variant,
            # Products by AVX-512 have the same bits. In both libraries, a mistake in them would be in both results.
            avx512=False,
            panel_bytes=ours.panel_bytes,
        )

    def _library(self, contents: LibraryContents, toolchain: Toolchain, target: Target) -> BuiltLibrary:
        return build_checked(contents, self.registry, target, toolchain, cmake=self.cmake, builds=self.builds)


def _without_auto_lto(toolchain: Toolchain) -> Toolchain:
    """The toolchain of the full library: to optimise that at link time would double what the first build takes."""
    build_options = toolchain.build_options
    return (
        toolchain.with_build_options(replace(build_options, lto=OFF))
        if build_options.lto == AUTO
        else toolchain
    )


def build_checked(
    contents: LibraryContents,
    registry: Registry,
    target: Target,
    toolchain: Toolchain,
    cmake: bool = False,
    builds: Builds | None = None,
) -> BuiltLibrary:
    """A library of just these contents, from `builds` where it was made already. `cmake`: the toolchain reads the
    package's CMake files. `contents` are what it holds, of the operators of `registry`, for `target`, built by
    `toolchain`. Raises ToolchainFailed, also when the link holds anything else."""
    given = _given(contents, registry, toolchain, cmake)
    built = (Builds() if builds is None else builds)[BuildJob(given, target, toolchain)]
    binary = read_binary(library_path(target), str(target), built.shared, built.unstripped)
    hides = toolchain.build_options.only(toolchain.honours(target)).visibility == "hidden"
    check_link(
        selected=[k.symbol for k in contents.kernels],
        kernels=tuple(registry.functions),
        symbols=[s.name for s in binary.symbols if not s.name.startswith(".")],  # labels of data
        exports=binary.exports if hides else (),
        imports=binary.imports,
    )
    sources = emit_sources(contents, registry)
    rolls_back = ROLLBACK in contents.safety
    return BuiltLibrary(built, binary, contents.kernels, sources, contents.compiled, rolls_back=rolls_back)


def _given(
    contents: LibraryContents, registry: Registry, toolchain: Toolchain, cmake: bool
) -> Mapping[str, bytes]:
    """The input of a toolchain. Only CMake reads the files for it, and without them the same sources are found in the
    cache."""
    sources = emit_sources(contents, registry)
    return {**sources, **cmake_files(sources, (), toolchain.build_options)} if cmake else sources
