"""Leave-one-out: the bytes that a library loses with one operator's kernels, by links without them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minbuild.codegen.sources import emit_sources
from minbuild.ops import Registry
from minbuild.planning.library_contents import LibraryContents
from minbuild.toolchain import BuildJob, Builds, Target, Toolchain


@dataclass(frozen=True)
class LeaveOneOut:
    """A library and the same without one operator's kernels each. Only the table of kernels is compiled again, so each
    takes a link."""

    contents: LibraryContents
    registry: Registry
    target: Target
    toolchain: Toolchain
    builds: Builds = field(default_factory=Builds)

    @property
    def stems(self) -> tuple[str, ...]:
        """The kernel files of the library."""
        return tuple(sorted({kernel.stem for kernel in self.contents.kernels}))

    def order(self, stem: str = "") -> BuildJob:
        """The library without the kernels of a file, or with all."""
        sources = dict(emit_sources(self.contents, self.registry))
        if stem:
            rest = replace(
                self.contents,
                kernels=tuple(k for k in self.contents.kernels if k.stem != stem),
                features=frozenset(f for f in self.contents.features if f.split(".")[0] != stem),
            )
            sources["src/kernel_table.cc"] = emit_sources(rest, self.registry)["src/kernel_table.cc"]
            del sources[f"src/kernels/{stem}.cc"]
        return BuildJob(sources, self.target, self.toolchain, archive=False)

    def orders(self) -> tuple[BuildJob, ...]:
        """Everything that `saved` compares."""
        return tuple(map(self.order, ("", *self.stems)))

    def saved(self) -> Mapping[str, int]:
        """Kernel file -> what the shared library without its kernels is smaller by, shared code that only they need
        included. Raises ToolchainFailed."""
        whole = self._file("")
        return {stem: whole - self._file(stem) for stem in self.stems}

    def _file(self, stem: str) -> int:
        return len(self.builds[self.order(stem)].shared)
