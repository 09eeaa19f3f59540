"""The build options of a library: values, meaning, defaults by profile, and what each saves. Command line, settings
files, documentation, compilers and the size waterfall read this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from minbuild.options.graph_selection import EVERY
from minbuild.options.option_row import OFF, ON, BuildOption, Value, choice

PROFILES: Mapping[str, str] = {
    "smallest": "same functions, least bytes; errors are codes, steps and builds take longer",
    "balanced": "small, with error messages in words",
    "fastest": "compiled for speed; larger",
}
DEFAULT = "balanced"
AUTO = "auto"
TARGET = "target"  # of stack_budget and max_page_size: as the target suggests
UNLIMITED, NONE = "unlimited", "none"  # the former of ram and lowering_time, the latter of the last
ORT, COMPACT = "ort", "compact"  # of initial_checkpoint
SAME, ANY = "same", "any"  # of accept_checkpoint
INTERPRETED, COMPILED = "interpreted", "compiled"  # of flavor, or auto
PLAIN, DENSE, LOOPS = "plain", "dense", "loops"  # of plan_encoding, or auto
GRADIENTS, LOSS, ALL = "gradients", "loss", "all"  # of finite_checks; the last of loop_variants, too
ONE = "one"  # of loop_variants
DIRECT, LEAST = "direct", "least"  # of lowerings, and the latter of step_calls
TABLES = "tables"  # of step_calls
TEXT, CODES = "text", "codes"  # of error_messages
SEPARATE, FUSED = "separate", "fused"  # of updates
FLOAT, NATIVE = "float", "native"  # of half_arithmetic
PLAN, SOURCES, COMPILER, LINKER = "plan", "sources", "compiler", "linker"  # the stage that applies an option


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The build options in force, in the order of the waterfall."""

    # First, for otherwise files of other steps end with as many bytes as fill a page.
    separate_code: str = choice(
        (OFF, ON),
        "place code and data on separate pages of the file",
        LINKER,
        neutral=ON,
        effect="code and data share pages of the file",
        tradeoff="The page of the file where code ends and data begin is in memory twice.",
    )
    kernel_features: str = choice(
        ("used", "all"),
        "kernel features to compile: those that the models use, or all, for other models of the same operators",
        SOURCES,
        neutral="all",
        effect="only the kernel features that the model uses",
        tradeoff="Other models of the same operators may need what is left out.",
    )
    shape_ops: str = choice(
        ("used", "all"),
        "shape arithmetic, batch loops and code for frozen parameters to compile: those of the plans, or all, for "
        "other models",
        SOURCES,
        neutral="all",
        effect="only the shape arithmetic and loops of the plan",
        tradeoff="Other models of the same operators may need what is left out.",
    )
    flavor: str = choice(
        (INTERPRETED, COMPILED, AUTO),
        "form in which the library has the plan of the model: a file that it reads (interpreted), tables of its own "
        "(compiled), or the smaller of both (auto)",
        SOURCES,
        smallest=AUTO,
    )
    plan_encoding: str = choice(
        (LOOPS, PLAIN, DENSE, AUTO),
        "encoding of plans that the library reads: tables (plain), streams of numbers that are decoded where they are "
        "used (dense), what is smaller together with the library (auto), or that for plans of loops over time of more "
        "than 4 KB as tables, and tables for others (loops)",
        SOURCES,
        smallest=AUTO,
    )
    loop_variants: str = choice(
        (AUTO, ALL, ONE),
        "variants of inner loops: for each vector width of the processor, layout and size of matrices (all), or one "
        "for all; auto: one where all sizes are known and no tensor has more than 128 elements, so that steps take as "
        "long",
        SOURCES,
        neutral=ALL,
        effect="one variant of every inner loop",
        min_size=ONE,
        tradeoff="Steps take two to five times as long on x86-64.",
        smallest=ONE,
        fastest=ALL,
    )
    packing: str = choice(
        (AUTO, ALL),
        "matrix products and convolutions that pack their operands, by kernels of 20 to 100 KB and with up to 0.7 MB "
        "more of temporaries: those that gain most, at a batch of one where it is free (auto), or all that gain at "
        "the largest sizes (all; chips have those of auto, as their memory is small)",
        PLAN,
        fastest=ALL,
    )
    lowerings: str = choice(
        (DIRECT, LEAST),
        "kernels of operators that others compute to the same bits: their own (direct), or what makes the smaller "
        "library, measured by links (least)",
        PLAN,
        smallest=LEAST,
    )
    equal_lowerings: tuple[str, ...] = choice(
        (),
        "kernels that stand for others, by the names in the guide to small libraries: taken whatever the size, or with "
        "no- before the name, never",
        PLAN,
        default=(),
        multiple=True,
        names="names of equal lowerings, such as relu-by-clip or no-relu-by-clip",
    )
    lowering_time: str = choice(
        (UNLIMITED, NONE),
        "percent of a training step that equal lowerings may add to its time, as estimated",
        PLAN,
        default="10",
        numbers=(2, 1000),
        smallest="50",
        fastest=NONE,
    )
    step_calls: str = choice(
        (TABLES, LEAST),
        "steps of a plan that is compiled in: rows of tables, or for some kernels straight calls with their arguments "
        "as constants where the library is smaller, measured by links (least)",
        SOURCES,
        smallest=LEAST,
    )
    graphs: tuple[str, ...] = choice(
        EVERY,
        "graphs that the device can run: training steps, evaluation, optimizer steps",
        PLAN,
        multiple=True,
        effect="only the selected graphs of training, evaluation and optimizer",
    )
    updates: str = choice(
        (SEPARATE, FUSED),
        "updates of parameters: in optimizer steps (separate), or in the training step, each as soon as its gradient "
        "is known (fused, mb_train_and_update): no gradients are stored, so AdamW takes 12 bytes a parameter in "
        "place of 16. Fused ones have no gradient accumulation and no clipping by the norm of all gradients",
        PLAN,
    )
    half_arithmetic: str = choice(
        (FLOAT, NATIVE),
        "arithmetic of matrix products of float16 and bfloat16: that of float, or the processor's own (native), which "
        "rounds more; on aarch64 with instructions for it",
        PLAN,
    )
    threads: str = choice(
        (AUTO, OFF, ON),
        "threads that work on one call, at most 8 or the number given; auto: on where the system makes threads and a "
        "step of the model has work enough for them. Results have the same bits for any number",
        PLAN,
        numbers=(2, 64),
        smallest=OFF,
    )
    ram: str = choice(
        (UNLIMITED,),
        "bytes of RAM for temporaries, at the largest sizes, and for what persists between calls; for fewer, a "
        "training step computes the batch in slices, or parts of its forward pass twice (exit code 5 where no plan is "
        "so small). Slices add gradients up in another order; everything else keeps the same bits",
        PLAN,
        sized=True,
    )
    checkpoint_writing: str = choice(
        (ON, OFF),
        "writing of checkpoints on the device",
        SOURCES,
        effect="no writing of checkpoints",
        min_size=OFF,
        tradeoff="What was trained cannot be saved as a checkpoint; parameters can be read.",
    )
    stack_budget: str = choice(
        (TARGET,),
        "bytes of stack that calls may take, measured when the trainer is proven (exit code 5 above it); of it matrix "
        "products take up to half",
        SOURCES,
        sized=True,
    )
    initial_checkpoint: str = choice(
        (ORT, COMPACT),
        "form of the checkpoint that a device starts from: that of ONNX Runtime, or compact, parameters without names "
        "beside the other (what is saved and loaded later is that of ONNX Runtime)",
        PLAN,
        smallest=COMPACT,
    )
    rollback: str = choice(
        (ON, OFF),
        "restore running statistics, seeds and the step count when a call fails",
        SOURCES,
        effect="no rollback of failed calls",
        min_size=OFF,
        tradeoff="A refused training step, such as one with a bad label, may have changed running statistics and "
        "Dropout's seed.",
    )
    finite_checks: str = choice(
        (GRADIENTS, LOSS, ALL, OFF),
        "refuse NaN and infinity: optimizer steps with such gradients or learning rate, training steps with such "
        "a loss, both (all), or neither (off)",
        SOURCES,
        effect="no check that gradients are finite",
        min_size=OFF,
        tradeoff="One NaN in a batch makes every parameter NaN, without an error.",
    )
    denormals: str = choice(
        ("flush", "keep"),
        "denormal numbers, which many processors are slow with: zero during a call, or kept",
        SOURCES,
        effect="denormals are not flushed to zero",
    )
    checkpoint_checks: str = choice(
        (ON, OFF),
        "checkpoints with a checksum, with which a damaged one is refused, and with seeds and learning rate, with "
        "which training goes on as if it had not stopped",
        SOURCES,
        effect="no checksum and no seeds in checkpoints",
        min_size=OFF,
        tradeoff="Damaged checkpoints may be accepted, and seeds and learning rate are not saved.",
    )
    accept_checkpoint: str = choice(
        (SAME, ANY),
        "checkpoints to load where they have --checkpoint-checks: those of the same model, or any with parameters of "
        "the same names, types and shapes",
        SOURCES,
        effect="checkpoints of any model with the same parameters are accepted",
        min_size=ANY,
        tradeoff="A checkpoint of another model with the same parameters is accepted.",
    )
    file_io: str = choice(
        (ON, OFF),
        "functions that need a file system; without them, the program provides plan, checkpoint and memory",
        SOURCES,
        effect="no functions that need a file system",
        min_size=OFF,
        tradeoff="Sessions are created from bytes and memory that the program provides; no file is "
        "read or written.",
    )
    error_messages: str = choice(
        (TEXT, CODES),
        "error messages in words, or codes for `minbuild explain`; with codes the plan has no names of kernels",
        SOURCES,
        effect="errors are codes for `minbuild explain`",
        min_size="codes",
        tradeoff="Error messages are codes; `minbuild explain` translates them.",
        smallest="codes",
    )
    strip: str = choice(
        (ON, OFF),
        "strip debug symbols",
        LINKER,
        neutral=OFF,
        effect="no debug symbols",
        tradeoff="Debuggers see addresses.",
    )
    unwind_tables: str = choice(
        (OFF, ON),
        "tables for stack traces",
        COMPILER,
        neutral=ON,
        effect="no tables for stack traces and exceptions",
        tradeoff="Debuggers and profilers see no callers.",
    )
    visibility: str = choice(
        ("hidden", "default"),
        "exported functions: those of the API, or all",
        COMPILER,
        neutral="default",
        effect="only the API is exported",
        tradeoff="Programs cannot call other functions.",
    )
    gc_sections: str = choice(
        (ON, OFF),
        "remove unreachable functions and data",
        COMPILER,
        neutral=OFF,
        effect="unreachable functions and data are removed",
        tradeoff="Functions that the API does not reach are missing.",
    )
    optimize: str = choice(
        ("size", "speed"),
        "optimization goal of the compiler",
        COMPILER,
        neutral="speed",
        effect="optimised for size, except hot loops",
        tradeoff="Steps may take longer.",
        fastest="speed",
    )
    speed_for: tuple[str, ...] = choice(
        (), "kernels to compile for speed, regardless of --optimize", COMPILER, default=(), multiple=True
    )
    size_for: tuple[str, ...] = choice(
        (), "kernels to compile for size, regardless of --optimize", COMPILER, default=(), multiple=True
    )
    lto: str = choice(
        (AUTO, ON, OFF),
        "link-time optimisation; auto: of trimmed libraries, where the default compiler links ELF",
        COMPILER,
        neutral=OFF,
        effect="link-time optimisation",
        min_size=ON,
        tradeoff="Builds take longer.",
        smallest=ON,
        fastest=OFF,
    )
    icf: str = choice(
        (ON, OFF),
        "identical code folding",
        LINKER,
        neutral=OFF,
        effect="identical functions are folded",
        tradeoff="Debuggers may show another function with the same code.",
    )
    section_headers: str = choice(
        ("needed", "all"),
        "section headers and hash buckets to keep: those that loaders and linkers read, or all",
        LINKER,
        neutral="all",
        effect="no section headers and hash buckets that no loader reads",
        tradeoff="Tools find fewer sections by name.",
    )
    max_page_size: str = choice(
        (TARGET, "4096", "16384", "65536"),
        "largest memory page that the library supports: that of the target, or bytes",
        LINKER,
    )
    avx512: str = choice(
        (ON, OFF),
        "an AVX-512 variant of products that are large enough to be packed and of GELU over large tensors, selected at "
        "run time on x86-64; bits are the same",
        SOURCES,
        min_size=OFF,
        tradeoff="Products take up to 1.7 times as long where a processor multiplies vectors of 64 bytes at full rate.",
        proposal="no AVX-512 variant of large products",
        smallest=OFF,
    )

    def speeds(self, kernel: str) -> bool:
        """True if a kernel file is compiled for speed."""
        return kernel in self.speed_for or self.optimize == "speed" and kernel not in self.size_for

    @property
    def checks_gradients(self) -> bool:
        """True if an update refuses a gradient that is not finite."""
        return self.finite_checks in (GRADIENTS, ALL)

    @property
    def slowest_lowering(self) -> float:
        """The most times as long that a step may take with equal lowerings."""
        percent = {UNLIMITED: "inf", NONE: "0"}.get(self.lowering_time, self.lowering_time)
        return 1 + float(percent) / 100

    @property
    def ram_budget(self) -> int | None:
        """Bytes that temporaries and what persists may take; None without a limit."""
        return None if self.ram == UNLIMITED else int(self.ram)

    @property
    def checks_loss(self) -> bool:
        """True if a training step refuses a loss that is not finite."""
        return self.finite_checks in (LOSS, ALL)

    def only(self, names: Iterable[str]) -> BuildOptions:
        """These build options, all others as they are by default: what a toolchain makes of them that honours these."""
        chosen: dict[str, Any] = {name: getattr(self, name) for name in names}
        return BuildOptions(**chosen)

    def without(self, name: str) -> BuildOptions:
        """The same, but nothing saved by the build option of that name."""
        neutral: dict[str, Any] = {name: build_option(name).neutral}
        return replace(self, **neutral)

    @property
    def savings(self) -> Mapping[str, str]:
        """The build options that are there to save bytes, by name, with what they do."""
        return {c.name: c.effect for c in table() if c.effect and getattr(self, c.name) != c.neutral}

    @property
    def changed(self) -> Mapping[str, Value]:
        """The options that differ from the default profile, by name."""
        return {c.name: getattr(self, c.name) for c in table() if getattr(self, c.name) != c.default}

    @property
    def as_text(self) -> Mapping[str, str]:
        """Every build option by its key, in words, for reports."""
        values = {c.key: getattr(self, c.name) for c in table()}
        return {key: ",".join(v) if isinstance(v, tuple) else v for key, v in values.items()}


@cache
def table() -> tuple[BuildOption, ...]:
    """All build options, in their order."""
    return tuple(BuildOption(name=f.name, **f.metadata) for f in fields(BuildOptions))


def build_option(name: str) -> BuildOption:
    """The row of a field."""
    return next(option for option in table() if option.name == name)


def in_profile(profile: str) -> BuildOptions:
    """The build options that a profile makes."""
    made: dict[str, Any] = {option.name: option.of(profile) for option in table()}
    return BuildOptions(**made)
