"""The trimmed and the full library of a target, built and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from minbuild.codegen.package import cmake_files, library_path
from minbuild.codegen.sources import emit_sources
from minbuild.formats.detect import read_binary
from minbuild.formats.symbol_origins import Owners, from_archive
from minbuild.ir import Binary, Kernel
from minbuild.ops import Registry
from minbuild.planning.library_contents import FLUSH, LibraryContents, full_contents
from minbuild.toolchain import BuildJob, BuildOutput, Target, Toolchain, build_all, build_library, check_link


@dataclass(frozen=True, slots=True)
class LinkedLibrary:
    """A linked library, the sources of its symbols, and the kernels it was built with."""

    binary: Binary
    owners: Owners
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True, slots=True)
class BuiltLibrary:
    """A library as built, as read back, and what was asked of it."""

    built: BuildOutput
    binary: Binary
    kernels: tuple[Kernel, ...]
    sources: Mapping[str, bytes]

    @property
    def measured(self) -> LinkedLibrary:
        """What the size report wants to know."""
        owners = from_archive("libminbuild.a", self.built.archive, self.sources)
        return LinkedLibrary(self.binary, owners, self.kernels)


@dataclass(frozen=True, slots=True)
class TrimmedAndFull:
    """Both libraries of one target."""

    target: Target
    trimmed: BuiltLibrary
    full: BuiltLibrary


@dataclass(frozen=True, slots=True)
class LibraryBuilder:
    """Builds libraries of the same contents with one toolchain; `stage` hears what is being done, `detail` each step
    of it."""

    contents: LibraryContents
    registry: Registry
    toolchain: Toolchain
    cmake: bool
    stage: Callable[[str], None]
    detail: Callable[[str], None]

    def pair(self, target: Target) -> TrimmedAndFull:
        """Both libraries of a target. Raises ToolchainFailed, also when a library holds what was not
        selected."""
        return self.pairs((target,))[0]

    def pairs(self, targets: Sequence[Target]) -> tuple[TrimmedAndFull, ...]:
        """Both libraries of each target, all built side by side. Raises as `pair`."""
        names = ", ".join(map(str, targets))
        self.stage(f"Building the trainer for {names}, and the full one to compare with (kept for next time)")
        full = full_contents(self.registry, self.contents.components, self.contents.wide)
        # The same numbers, down to denormals.
        full = replace(full, safety=full.safety - {FLUSH} | self.contents.safety & {FLUSH})
        given = [self._given(contents) for contents in (self.contents, full)]
        orders = [BuildJob(sources, target, self.toolchain) for target in targets for sources in given]
        build_all(orders, progress=self.detail)
        return tuple(
            TrimmedAndFull(t, self._library(self.contents, t), self._library(full, t)) for t in targets
        )

    def _given(self, contents: LibraryContents) -> Mapping[str, bytes]:
        return _given(contents, self.registry, self.toolchain, self.cmake)

    def _library(self, contents: LibraryContents, target: Target) -> BuiltLibrary:
        return build_checked(
            contents, self.registry, target, self.toolchain, cmake=self.cmake, detail=self.detail
        )


def build_checked(
    contents: LibraryContents,
    registry: Registry,
    target: Target,
    toolchain: Toolchain,
    cmake: bool = False,
    detail: Callable[[str], None] = lambda line: None,
) -> BuiltLibrary:
    """A library of just these contents. Raises ToolchainFailed, also when the link holds anything else."""
    given = _given(contents, registry, toolchain, cmake)
    built = build_library(given, target, toolchain, progress=detail)
    binary = read_binary(library_path(target), str(target), built.shared, built.twin)
    hides = toolchain.build_options.only(toolchain.honours(target)).visibility == "hidden"
    check_link(
        selected=[k.symbol for k in contents.kernels],
        kernels=tuple(registry.functions),
        symbols=[s.name for s in binary.symbols if not s.name.startswith(".")],  # labels of data
        exports=binary.exports if hides else (),
        imports=binary.imports,
    )
    return BuiltLibrary(built, binary, contents.kernels, emit_sources(contents, registry))


def _given(
    contents: LibraryContents, registry: Registry, toolchain: Toolchain, cmake: bool
) -> Mapping[str, bytes]:
    """What a toolchain is given. Only CMake reads the files for it, and without them the same sources are found in the
    cache."""
    sources = emit_sources(contents, registry)
    return {**sources, **cmake_files(sources, (), toolchain.build_options)} if cmake else sources
