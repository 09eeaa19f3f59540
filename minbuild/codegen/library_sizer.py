"""Libraries that are built for their size only, where a choice between two is by bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minbuild.codegen.library_builder import build_checked
from minbuild.options.build_options import BuildOptions
from minbuild.options.did_you_mean import listed
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import ExtraRequirements, contents_of
from minbuild.toolchain import Target, Toolchain


@dataclass(frozen=True, slots=True)
class LibrarySizer:
    """Builds libraries of a package for each of `targets`: by `toolchain`, through the package's own CMake files with
    `cmake`; `extra` is what they have beyond the needs of models."""

    extra: ExtraRequirements
    toolchain: Toolchain
    targets: tuple[Target, ...]
    cmake: bool

    @property
    def target(self) -> str:
        """The targets, in words."""
        return listed(map(str, self.targets))

    def loaded_bytes(self, models: Sequence[CompiledModel], build_options: BuildOptions) -> int:
        """Bytes of the libraries of all targets as `loaded_by_target` has them. Raises ToolchainFailed."""
        return sum(self.loaded_by_target(models, build_options))

    def loaded_by_target(
        self, models: Sequence[CompiledModel], build_options: BuildOptions
    ) -> tuple[int, ...]:
        """Bytes of a library for `models` that are loaded, built as `build_options` say, for each target. Raises
        ToolchainFailed."""
        contents = contents_of(models, self.extra, build_options=build_options)
        chosen = self.toolchain.with_build_options(build_options)
        libraries = (
            build_checked(contents, models[0].registry, target, chosen, self.cmake) for target in self.targets
        )
        return tuple(
            sum(section.file_size for section in library.binary.sections if section.allocated)
            for library in libraries
        )
