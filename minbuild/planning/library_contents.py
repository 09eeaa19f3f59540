"""The contents of a library: kernels, their features, and the components of the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minbuild.ir import Kernel
from minbuild.ir.mapped import FileBytes
from minbuild.ops import Registry
from minbuild.planning.large_products import packs
from minbuild.planning.plan_encoding import EXPRESSIONS

COMPONENTS: Mapping[str, tuple[str, str]] = {
    "properties": ("properties.cc", "numbers and texts kept in checkpoints, and the learning rate with them"),
    "buffers": ("buffers.cc", "all parameters as one array, and nominal checkpoints"),
    "export": ("export.cc", "ONNX models for inference"),
}  # optional components: source file, meaning
CHECKPOINT_WRITING = "checkpoint_writing"
ROLLBACK, FINITE, FLUSH = "rollback", "finite", "flush"
CHECKSUMS, FINGERPRINT = "checksums", "fingerprint"
SAFETY: Mapping[str, str] = {
    ROLLBACK: "a failed step restores running statistics, seeds and counters",
    FINITE: "optimizer steps check gradients and learning rate",
    FLUSH: "denormals are zero for the time of a call",
    CHECKSUMS: "checkpoints carry a checksum, seeds and learning rate",
    FINGERPRINT: "checkpoints of other models are refused",
}  # what a library does unless asked not to: its macro, and what it is
ALIKE = frozenset({CHECKSUMS, FLUSH})  # what shows in results: as in the trimmed library, so in the full one
OPTIONAL = (*COMPONENTS, CHECKPOINT_WRITING)  # what an API need not have
PROPERTY_BYTES = 1024  # room of a session for its properties


@dataclass(frozen=True)
class LibraryContents:
    """The contents of a library: a plan's needs, or everything."""

    kernels: tuple[Kernel, ...]
    features: frozenset[str]  # "stem.feature"
    symbols: bool  # dimensions chosen at run time
    file_io: bool = True
    expressions: tuple[str, ...] = EXPRESSIONS  # operators of sizes
    loops: int = (
        4  # 1: steps that run once per sample; 2: also from the last sample on; 3: ended by kernels; 4: long
    )
    draws: bool = True  # nodes with a seed, which count their random draws
    frozen_parameters: bool = True  # parameters that training does not update
    wide: bool = False  # plans with 64-bit sizes and 32-bit indices
    dense: int = (
        0  # plans in the dense encoding: with 16-bit indices, 2 with 8-bit ones, 2 more with shared names
    )
    digest: str = ""  # of the model it was made for
    components: frozenset[str] = frozenset()  # of COMPONENTS
    error_messages: bool = True  # errors in words; else codes, which `minbuild explain` tells the words of
    checkpoint_writing: bool = True  # checkpoints can be written
    safety: frozenset[str] = frozenset(SAFETY)  # of SAFETY
    fused_updates: bool = False  # training steps update parameters, and no gradients are stored
    # 1: for plans whose moments are only in checkpoints; 2: for those, and plans that store them
    idle_moments: int = 2
    compiled_plan: FileBytes = b""  # the plan that is compiled in; without, the library reads plans
    straight: frozenset[str] = frozenset()  # kernels of that whose steps are straight calls
    threads: int = 1  # most that work on a call
    one_variant: bool = False  # of every inner loop
    avx512: bool = False  # one more variant of those that pay for it, on x86-64
    panel_bytes: int = 0  # on the stack for a matrix product; 0: as the target suggests
    compact_checkpoints: bool = False  # checkpoints without names are read, too
    reads_trainable: bool = False  # frozen parameters may be trainable ones of a checkpoint

    @property
    def large_pages(self) -> bool:
        """True if memory is asked for in large pages: models with large products or threads read more than tables of
        small ones keep up with."""
        return self.threads > 1 or (not self.one_variant and packs(self.kernels, self.features))

    @property
    def compiled(self) -> bool:
        """True if the plan is compiled in."""
        return bool(self.compiled_plan)

    @property
    def optional(self) -> frozenset[str]:
        """The optional components that it has."""
        return self.components | ({CHECKPOINT_WRITING} if self.checkpoint_writing else frozenset())


def full_contents(
    registry: Registry,
    components: frozenset[str] = frozenset(),
    wide: bool = False,
    threads: int = 1,
    dense: int = 0,
) -> LibraryContents:
    """The full build: every kernel for every type with every feature; of optional components, only `components`, as
    they change what checkpoints hold, and plans of the same width, encoding and number of `threads`. `registry` has the
    kernels; `wide` plans have 64-bit sizes, `dense` ones the dense encoding."""
    return LibraryContents(
        registry.all_kernels(),
        frozenset(registry.all_features()),
        symbols=True,
        components=components,
        wide=wide,
        dense=dense,
        threads=threads,
    )


def product_types(contents: LibraryContents) -> tuple[str, ...]:
    """The element types of the packed products that all kernels of a library share, if it has any."""
    if not packs(contents.kernels, contents.features):
        return ()
    types = {t for kernel in contents.kernels for t in kernel.types}
    return tuple(t for t in ("float", "double") if t in types)
