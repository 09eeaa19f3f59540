"""The numbers of the size report, once. Formatters under minbuild/report turn them into text and compute
nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minbuild.ir.operator_times import OperatorTime, Timing
from minbuild.ir.ram_price import RamPrice

SCHEMA = 1


# Order of the report, with the heading of each group.
KINDS: Mapping[str, str] = {
    "operator": "Operators",
    "shared": "Shared code",
    "runtime": "Runtime",
    "library": "C library and compiler runtime",
    "literal": "Literals and bytes without a symbol",
    "overhead": "Headers",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one library: the stripped file, its allocated sections with contents, the file after gzip
    -9."""

    file: int
    loaded: int
    download: int


@dataclass(frozen=True, slots=True)
class Named:
    """A symbol's bytes in the file, with every name it has, and the section and place in the file where they are."""

    names: tuple[str, ...]
    bytes: int
    section: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """The file bytes of one owner. For operators `name` is the stem of the kernel file, `users` are the
    model's operators it serves and `nodes` their nodes; for shared code `users` are the operator rows that
    call it. `leave_one_out` is the bytes by which a link without the operator's kernels is smaller, None where not
    measured."""

    kind: str
    name: str
    bytes: int
    users: tuple[str, ...]
    types: tuple[str, ...]
    nodes: tuple[str, ...]
    symbols: tuple[Named, ...]
    leave_one_out: int | None = None
    time: OperatorTime | None = None  # of operators, where it was measured


@dataclass(frozen=True, slots=True)
class Phase:
    """File bytes that serve the same `phases` of training, with their owners, largest first; without phases those of
    a kind of owner that serves all of them."""

    title: str
    phases: tuple[str, ...]
    bytes: int
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A build option that would make something smaller, measured: bytes it saves of the library's file, of the
    model's files and of RAM (negative where it costs), what it changes, and how to make it."""

    title: str
    file: int
    model: int
    ram: int
    changes: str
    how: str

    @property
    def saves(self) -> int:
        return self.file + self.model + self.ram


@dataclass(frozen=True, slots=True)
class SpeedFeature:
    """Something that makes steps faster for bytes, and that the sizes of the model decide: its `title`, the choice in a
    word or a number, the figures that decided as a sentence, and the bytes of the library's file and of RAM that are
    gone in a build without it; None where there was no such build."""

    name: str
    title: str
    chosen: str
    reason: str
    file: int | None = None
    ram: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """All rows of one kind; `full_bytes` is what the full build spends on the same kind."""

    kind: str
    title: str
    bytes: int
    full_bytes: int


@dataclass(frozen=True, slots=True)
class SectionRow:
    """Bytes of a section in the file and in memory, in both builds; 0 where a build lacks it."""

    name: str
    full_file: int
    trimmed_file: int
    full_memory: int
    trimmed_memory: int


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of both builds that are in one place while the library runs, by what they are."""

    name: str
    title: str
    place: str
    full_file: int
    trimmed_file: int
    full_memory: int
    trimmed_memory: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A step of the waterfall: the file with this step and all before it, and what the trimmed file grows by when only
    this step is left out (None for the first bar, which has none)."""

    step: str
    meaning: str
    file: int
    leave_one_out: int | None


@dataclass(frozen=True, slots=True)
class TypeRow:
    """Element types that the kernels of a file are compiled for, as C++ calls them, and how many kernels those are; in
    the trimmed build, which may have none of them, and in the full one."""

    name: str
    types: tuple[str, ...]
    full_types: tuple[str, ...]
    kernels: int
    full_kernels: int


@dataclass(frozen=True, slots=True)
class Static:
    """RAM the library takes when loaded: .data, .bss, and what the loader writes once (relocated)."""

    data: int
    bss: int

    @property
    def total(self) -> int:
        return self.data + self.bss


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """RAM of a session besides what persists and temporaries: its tables, with padding, and stacks of threads."""

    tables: int = 0
    stacks: int = 0

    @property
    def total(self) -> int:
        return self.tables + self.stacks


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A tensor or scratch memory in the arena at its peak: the node that writes it, the phase of that node,
    and bytes."""

    name: str
    node: str
    phase: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Arena:
    """Bytes one graph needs for its temporaries, and the most that are alive in one step: no layout beats
    it. `live` are the tensors of that `step`, which runs `node`; they add up to `lower_bound`."""

    graph: str
    peak: int
    lower_bound: int
    step: int = 0
    node: str = ""
    live: tuple[LiveTensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Smaller:
    """Bytes of the largest arena where the batch, one of the free dimensions, has this size."""

    symbol: str
    size: int
    arena: int


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A tensor of the checkpoint, or of a quantized weight: its element type by label (int4 and uint4 have two elements
    a byte), its use as a Role's name in small letters, its bytes."""

    name: str
    type: str
    shape: tuple[int, ...]
    use: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Persistent:
    """Bytes that live as long as the session. `frozen` is read in place from the checkpoint and costs no
    RAM."""

    parameters: int
    gradients: int
    optimizer: int
    state: int
    other: int
    frozen: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.state + self.other


@dataclass(frozen=True, slots=True)
class Stack:
    """The most bytes of stack that each call of the API took in a run, by its name."""

    calls: tuple[tuple[str, int], ...]

    @property
    def peak(self) -> int:
        return max((size for _, size in self.calls), default=0)

    @property
    def call(self) -> str:
        """The call that takes the most."""
        return max(self.calls, key=lambda call: call[1], default=("", 0))[0]


@dataclass(frozen=True, slots=True)
class StepDeviation:
    """The element that came nearest to its bound of all that were compared step by step: where it is, its error in
    units of the bound, and both values. At most 1 in a proof."""

    graph: str
    step: int  # of the graph, from 0
    kernel: str
    node: str
    output: int  # argument slot of the kernel
    element: int
    units: float
    found: float
    expected: float
    bound: float


@dataclass(frozen=True, slots=True)
class Verification:
    """The verification of one library: it was run or not, and computes the right results or not. `text` says what was
    proven; where nothing was, `reason` says why, and what would help. `worst` is in units of the reference's own
    noise, None without a reference; `stack` as measured on the way, None where nothing could be run. `steps` counts
    the steps whose outputs were compared one by one, `step` is the worst of them, None where bits are identical or
    nothing was compared so."""

    text: str
    worst: float | None = None
    stack: Stack | None = None
    proven: bool = True
    reason: str = ""
    steps: int = 0
    step: StepDeviation | None = None


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The figures that hold for every target: the model and its memory. `sizes` are the symbols `arenas` were measured
    at."""

    name: str
    minbuild: str
    files: tuple[tuple[str, str], ...]  # name, sha256
    sizes: tuple[tuple[str, int], ...]
    arenas: tuple[Arena, ...]
    persistent: Persistent
    plan_bytes: int
    checkpoint_bytes: int
    kernels: int
    full_kernels: int
    notes: tuple[str, ...] = ()
    smaller: tuple[Smaller, ...] = ()  # batches than that of `sizes`, the smallest first
    tensors: tuple[ModelTensor, ...] = ()  # the largest first
    ram_price: RamPrice | None = None  # of one model

    @property
    def arena(self) -> int:
        """Bytes of the largest arena: one serves all graphs."""
        return max((a.peak for a in self.arenas), default=0)


@dataclass(frozen=True, slots=True)
class TargetReport:
    """One target's two builds side by side, every byte of the trimmed file in `rows`, and where it came
    from."""

    target: str
    trimmed: Sizes
    full: Sizes
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    sections: tuple[SectionRow, ...]
    static: Static
    ram: int  # static, the largest arena, the persistent region and the session's own together
    exports: tuple[str, ...]
    imports: tuple[str, ...]
    verification: Verification | None
    toolchain: str
    flags: tuple[str, ...]
    digest: str  # sha256 of the trimmed file
    files: tuple[tuple[str, str], ...]  # what it is, where it is
    waterfall: tuple[Bar, ...] = ()  # from every kernel to the trimmed file; empty where it was left out
    phases: tuple[Phase, ...] = ()  # their bytes add up to the trimmed file
    suggestions: tuple[Suggestion, ...] = ()  # largest saving first; empty where it was left out
    types: tuple[TypeRow, ...] = ()  # of all kernel files
    regions: tuple[Region, ...] = ()  # their bytes add up to those of the sections
    session: SessionMemory = SessionMemory()  # noqa: RUF009 (frozen)
    features: tuple[SpeedFeature, ...] = ()
    timing: Timing | None = None  # where times of operators were asked for

    @property
    def stack(self) -> Stack | None:
        """The depth of the stack; None where nothing could be run."""
        return self.verification.stack if self.verification else None


@dataclass(frozen=True, slots=True)
class Board:
    """Bytes of flash and RAM that a device has."""

    name: str
    flash: int
    ram: int


@dataclass(frozen=True, slots=True)
class SizeReport:
    """The whole report."""

    schema: int
    model: ModelReport
    targets: tuple[TargetReport, ...]
    models: tuple[
        ModelReport, ...
    ] = ()  # each by itself where there are several; `model` is all of them together
    build_options: tuple[tuple[str, str], ...] = ()  # in force, by the user or by a profile: name, value
    board: Board | None = None  # that the trainer has to fit into
