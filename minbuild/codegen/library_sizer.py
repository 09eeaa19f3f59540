"""Libraries that are built for their size only, where a choice between two is by bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minbuild.codegen.library_builder import build_checked
from minbuild.options.build_options import BuildOptions
from minbuild.planning.compile import CompiledModel
from minbuild.planning.kernel_selection import ExtraRequirements, contents_of
from minbuild.toolchain import Target, Toolchain


@dataclass(frozen=True, slots=True)
class LibrarySizer:
    """Builds libraries of a package for `target`: by `toolchain`, through the package's own CMake files with
    `cmake`; `extra` is what they have beyond the needs of models."""

    extra: ExtraRequirements
    toolchain: Toolchain
    target: Target
    cmake: bool

    def loaded_bytes(self, models: Sequence[CompiledModel], build_options: BuildOptions) -> int:
        """Bytes of a library for `models` that are loaded, built as `build_options` say. Raises ToolchainFailed."""
        contents = contents_of(models, self.extra, build_options=build_options)
        chosen = self.toolchain.with_build_options(build_options)
        library = build_checked(contents, models[0].registry, self.target, chosen, self.cmake)
        return sum(section.file_size for section in library.binary.sections if section.allocated)
