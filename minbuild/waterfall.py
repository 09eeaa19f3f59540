"""What each way to make a library smaller is worth: builds with one more of them at a time, and with all but one.

Every bar is a real build. The first has every kernel and is built as an ordinary shared library; each further one
adds a step, in a fixed order; the last is the trimmed library itself. `alone` is what the trimmed library grows by
when just that step is left out: steps overlap, so both figures are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

from minbuild.emit import Contents, emit_sources
from minbuild.model import Kernel
from minbuild.ops import Registry
from minbuild.size.report import Bar
from minbuild.toolchain import Target, Toolchain, build_library
from minbuild.toolchain.flags import Mechanisms
from minbuild.toolchain.zig import Zig

# Steps that choose what is compiled: name, what a reader should know.
CONTENTS = {
    "operators": "only kernels that the model runs",
    "types": "only element types that it uses",
    "features": "only the parts of kernels that it needs",
    "sizes": "only the size arithmetic and loops that its plan has",
}
# Steps that choose how: fields of Mechanisms, in the order they are taken.
MECHANISMS = {
    "strip": "no names for debuggers",
    "no_unwind": "no tables for stack traces and exceptions",
    "hidden": "only the API is visible",
    "sections": "functions and data that nothing reaches are dropped",
    "size": "optimised for size, hot loops excepted",
    "fold": "equal functions are one",
    "headers": "no section headers and hash buckets that no loader reads",
}
assert set(MECHANISMS) == {f.name for f in fields(Mechanisms)}


@dataclass(frozen=True)
class Builder:
    """Builds variants of one library: `selected` is the trimmed one's contents, `full` that of every model."""

    selected: Contents
    full: Contents
    registry: Registry
    target: Target
    toolchain: Toolchain
    say: Callable[[str], None] = lambda line: None

    @property
    def steps(self) -> dict[str, str]:
        """The steps that can be left out here, in order, with their meaning. Other toolchains than the default one
        are told their flags by whoever brings them; formats other than ELF leave the linker no choice."""
        mechanisms = isinstance(self.toolchain, Zig) and self.target.traits.is_elf
        return {**CONTENTS, **(MECHANISMS if mechanisms else {})}

    def size(self, taken: frozenset[str]) -> int:
        """Bytes of the library with just the steps in `taken`."""
        toolchain = self.toolchain
        if isinstance(toolchain, Zig) and self.target.traits.is_elf:
            on = {name: name in taken for name in MECHANISMS}
            toolchain = replace(toolchain, mechanisms=Mechanisms(**on))
        sources = emit_sources(self.contents(taken), self.registry)
        return len(build_library(sources, self.target, toolchain, progress=self.say).shared)

    def contents(self, taken: frozenset[str]) -> Contents:
        """What is compiled with the steps in `taken`."""
        selected, full = self.selected, self.full
        used = {k.function for k in selected.kernels}
        stems = {k.stem for k in selected.kernels}

        def keeps(kernel: Kernel) -> bool:
            return ("types" if kernel.function in used else "operators") not in taken

        def has(feature: str) -> bool:
            here = feature.split(".")[0] in stems
            return feature in selected.features or ("features" if here else "operators") not in taken

        kernels = {*filter(keeps, full.kernels), *selected.kernels}
        general = selected if "sizes" in taken else full
        return Contents(
            tuple(sorted(kernels, key=lambda k: (k.stem, k.function, k.types))),
            frozenset(filter(has, full.features)),
            general.symbols,
            selected.files,
            general.expressions,
            general.loops,
            selected.digest,
            selected.parts,
        )


def waterfall(builder: Builder) -> tuple[Bar, ...]:
    """The bars, in order. Raises ToolchainFailed."""
    return tuple(_bars(builder))


def _bars(builder: Builder) -> Iterator[Bar]:
    steps = builder.steps
    everything = frozenset(steps)
    taken: frozenset[str] = frozenset()
    builder.say("every kernel, an ordinary shared library")
    yield Bar("everything", "every kernel of minbuild, an ordinary shared library", builder.size(taken), None)
    trimmed = builder.size(everything)
    for name, meaning in steps.items():
        taken |= {name}
        builder.say(name.replace("_", " "))
        file = builder.size(taken)
        alone = builder.size(everything - {name}) - trimmed
        yield Bar(name.replace("_", " "), meaning, file, alone)
