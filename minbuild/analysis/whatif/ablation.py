"""The size waterfall: builds with one more of them at a time, and with all but one.

Every bar is a real build. The first has every kernel and is built as an ordinary shared library; each further one
adds a step, in a fixed order; the last is the trimmed library itself. `leave_one_out` is what the trimmed library
grows by when just that step is left out: steps overlap, so both figures are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from minbuild.codegen.sources import emit_sources
from minbuild.ir import Kernel
from minbuild.ir.size_report import Bar
from minbuild.ops import Registry
from minbuild.options.build_options import BuildOptions, build_option
from minbuild.planning.kernel_selection import safety_of
from minbuild.planning.library_contents import LibraryContents
from minbuild.toolchain import BuildJob, Builds, Target, Toolchain

# What is always chosen, and by the model: name, what a reader should know. All other steps are build options.
SELECTION = {
    "operators": "only kernels that the model runs",
    "types": "only element types that it uses",
}


@dataclass(frozen=True)
class Ablation:
    """Builds variants of one library. `selected` is the trimmed one's contents, `unbounded` the same with all graphs of
    the models, `full` that of every model; the toolchain has the build options in force."""

    selected: LibraryContents
    unbounded: LibraryContents
    full: LibraryContents
    registry: Registry
    target: Target
    toolchain: Toolchain
    builds: Builds = field(default_factory=Builds)

    @property
    def build_options(self) -> BuildOptions:
        """The build options in force for this target."""
        return self.toolchain.build_options.only(self.toolchain.honours(self.target))

    @property
    def steps(self) -> dict[str, str]:
        """The steps that can be left out here, in order, with their meaning: what was chosen to save bytes and the
        toolchain can do and can leave."""
        leaves = self.toolchain.honours(self.target)
        chosen = {name: text for name, text in self.build_options.savings.items() if name in leaves}
        return {**SELECTION, **chosen}

    def order(self, taken: frozenset[str]) -> BuildJob:
        """The library with just the steps in `taken`."""
        sources = emit_sources(self.contents(taken), self.registry)
        toolchain = self.toolchain.with_build_options(self._options(taken))
        return BuildJob(sources, self.target, toolchain, archive=False)

    def _options(self, taken: frozenset[str]) -> BuildOptions:
        """The build options of the library with the steps in `taken`."""
        build_options = self.build_options
        for name in self.steps:
            if name not in SELECTION and name not in taken:
                build_options = build_options.without(name)
        return build_options

    def size(self, taken: frozenset[str]) -> int:
        """Bytes of the library with just the steps in `taken`."""
        return len(self.builds[self.order(taken)].shared)

    def contents(self, taken: frozenset[str]) -> LibraryContents:
        """The contents of the library with the steps in `taken`."""
        full, out = self.full, self.steps.keys() - taken
        selected = self.unbounded if "graphs" in out else self.selected
        used = {k.function for k in selected.kernels}
        stems = {k.stem for k in selected.kernels}

        def left(name: str) -> bool:
            return name in out

        def keeps(kernel: Kernel) -> bool:
            return left("types" if kernel.function in used else "operators")

        def has(feature: str) -> bool:
            here = feature.split(".")[0] in stems
            return feature in selected.features or left("kernel_features" if here else "operators")

        kernels = {*filter(keeps, full.kernels), *selected.kernels}
        general = full if left("shape_ops") else selected
        return replace(
            selected,
            kernels=tuple(sorted(kernels, key=lambda k: (k.stem, k.function, k.types))),
            features=frozenset(filter(has, full.features)),
            symbols=general.symbols,
            expressions=general.expressions,
            loops=general.loops,
            draws=general.draws,
            frozen_parameters=general.frozen_parameters,
            safety=selected.safety | safety_of(self._options(taken)),
            one_variant=selected.one_variant and not left("loop_variants"),
            reads_trainable=full.reads_trainable if left("graphs") else selected.reads_trainable,
            checkpoint_writing=selected.checkpoint_writing or left("checkpoint_writing"),
            file_io=selected.file_io or left("file_io"),
            error_messages=selected.error_messages or left("error_messages"),
        )

    def variants(self) -> Iterator[frozenset[str]]:
        """The sets of steps of all bars: none, one more at a time, and all but one."""
        steps = tuple(self.steps)
        for count in range(len(steps) + 1):
            yield frozenset(steps[:count])
        for name in steps:
            yield frozenset(steps) - {name}

    def orders(self) -> tuple[BuildJob, ...]:
        """Everything that the waterfall compares."""
        return tuple(map(self.order, dict.fromkeys(self.variants())))


def waterfall(builder: Ablation) -> tuple[Bar, ...]:
    """The bars, in order. Raises ToolchainFailed."""
    return tuple(_bars(builder))


def title(step: str) -> str:
    """The title of a bar: the name of its build option on the command line."""
    return step if step in SELECTION else build_option(step).key


def _bars(builder: Ablation) -> Iterator[Bar]:
    steps = builder.steps
    everything = frozenset(steps)
    taken: frozenset[str] = frozenset()
    yield Bar("everything", "every kernel of minbuild, an ordinary shared library", builder.size(taken), None)
    trimmed = builder.size(everything)
    for name, meaning in steps.items():
        taken |= {name}
        file = builder.size(taken)
        loo = builder.size(everything - {name}) - trimmed
        yield Bar(title(name), meaning, file, loo)
