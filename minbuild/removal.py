"""What a library would lose with an operator's kernels: links without them, everything else the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from minbuild.emit import Contents, emit_sources
from minbuild.ops import Registry
from minbuild.toolchain import Target, Toolchain, build_library


def removed(
    contents: Contents,
    registry: Registry,
    target: Target,
    toolchain: Toolchain,
    say: Callable[[str], None] = lambda line: None,
) -> Mapping[str, int]:
    """Kernel file -> what the shared library without its kernels is smaller by, shared code that only they need
    included. Only the table of kernels is compiled again, so each takes a link. Raises ToolchainFailed."""
    whole = emit_sources(contents, registry)
    file = len(build_library(whole, target, toolchain, progress=say).shared)
    found = {}
    for stem in sorted({kernel.stem for kernel in contents.kernels}):
        rest = replace(
            contents,
            kernels=tuple(k for k in contents.kernels if k.stem != stem),
            features=frozenset(f for f in contents.features if f.split(".")[0] != stem),
        )
        table = emit_sources(rest, registry)["src/kernel_table.cc"]
        sources = {**whole, "src/kernel_table.cc": table}
        del sources[f"src/kernels/{stem}.cc"]
        say(f"without {stem}")
        found[stem] = file - len(build_library(sources, target, toolchain, progress=say).shared)
    return found
