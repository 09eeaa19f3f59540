"""The build options of a library: values, meaning, defaults by profile, and what each saves. Command line, settings
files, documentation, compilers and the size waterfall read this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from minbuild.options.graph_selection import EVERY

PROFILES: Mapping[str, str] = {
    "smallest": "same functions, least bytes; errors are codes, builds take longer",
    "balanced": "small, with error messages in words",
    "fastest": "compiled for speed; larger",
}
DEFAULT = "balanced"
ON, OFF, AUTO = "on", "off", "auto"
SAME, ANY = "same", "any"  # of accept_checkpoint
INTERPRETED, COMPILED = "interpreted", "compiled"  # of flavor, or auto
GRADIENTS, LOSS, ALL = "gradients", "loss", "all"  # of finite_checks
PLAN, SOURCES, COMPILER, LINKER = "plan", "sources", "compiler", "linker"  # the stage that applies an option
# Other spellings of on and off, in TOML and in environment variables.
_SPELLINGS = {"true": ON, "yes": ON, "1": ON, "false": OFF, "no": OFF, "0": OFF}

Value = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuildOption:
    """One row of the table. `values` are the words to choose from, none where names of kernels are given; `multiple`
    says whether more than one may be. `neutral` is what a build has that does nothing for size; `effect` what the
    waterfall says of anything else, "" where that is not there to save bytes. `min_size` is what makes the smallest
    library and `tradeoff` what is given up for it, "" where that is not worth proposing. `profiles` are the values that
    differ from those of the default profile."""

    name: str  # of the field
    values: tuple[str, ...]
    description: str
    stage: str
    default: Value
    neutral: Value
    effect: str
    min_size: Value
    tradeoff: str
    multiple: bool
    profiles: Mapping[str, Value]

    @property
    def key(self) -> str:
        """Its name in settings, and behind two dashes on the command line."""
        return self.name.replace("_", "-")

    @property
    def allowed(self) -> str:
        """The values in words."""
        if not self.values:
            return "names of operators or of kernel files, such as Conv"
        return ", ".join(self.values) + (", or several of them" if self.multiple else "")

    def read(self, given: object) -> Value | None:
        """The value of what a user wrote, a word, a number, or a list of those; None where it is none."""
        words = given if isinstance(given, (list, tuple)) else [given]
        parts = [part.strip() for word in words for part in _text(word).split(",")]
        known = tuple(
            _SPELLINGS.get(p.lower(), p) if ON in self.values else p for p in dict.fromkeys(parts) if p
        )
        if not known or self.values and not set(known) <= set(self.values):
            return None
        if self.multiple:
            return tuple(v for v in self.values if v in known) or known
        return known[0] if len(known) == 1 else None

    def of(self, profile: str) -> Value:
        """Its value in a profile."""
        return self.profiles.get(profile, self.default)


def _text(word: object) -> str:
    return str(word).lower() if isinstance(word, bool) else str(word)


def _option(
    values: tuple[str, ...],
    description: str,
    stage: str,
    *,
    default: Value | None = None,
    neutral: Value | None = None,
    effect: str = "",
    min_size: Value | None = None,
    tradeoff: str = "",
    multiple: bool = False,
    **profiles: Value,
) -> Any:
    first: Value = (values if multiple else values[0]) if default is None else default
    row: dict[str, Any] = {
        "values": values,
        "description": description,
        "stage": stage,
        "multiple": multiple,
        "profiles": profiles,
    }
    row |= {"default": first, "neutral": first if neutral is None else neutral, "effect": effect}
    row |= {"min_size": first if min_size is None else min_size, "tradeoff": tradeoff}
    return field(default=first, metadata=row)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The build options in force, in the order of the waterfall."""

    # First, for otherwise files of other steps end with as many bytes as fill a page.
    separate_code: str = _option(
        (OFF, ON),
        "place code and data on separate pages of the file",
        LINKER,
        neutral=ON,
        effect="code and data share pages of the file",
        tradeoff="The page of the file where code ends and data begin is in memory twice.",
    )
    kernel_features: str = _option(
        ("used", "all"),
        "kernel features to compile: those that the models use, or all, for other models of the same operators",
        SOURCES,
        neutral="all",
        effect="only the kernel features that the model uses",
        tradeoff="Other models of the same operators may need what is left out.",
    )
    shape_ops: str = _option(
        ("used", "all"),
        "shape arithmetic and batch loops to compile: those of the plans, or all, for other models",
        SOURCES,
        neutral="all",
        effect="only the shape arithmetic and loops of the plan",
        tradeoff="Other models of the same operators may need what is left out.",
    )
    flavor: str = _option(
        (INTERPRETED, COMPILED, AUTO),
        "form in which the library has the plan of the model: a file that it reads (interpreted), tables of its own "
        "(compiled), or the smaller of both (auto)",
        SOURCES,
    )
    graphs: tuple[str, ...] = _option(
        EVERY,
        "graphs that the device can run: training steps, evaluation, optimizer steps",
        PLAN,
        multiple=True,
        effect="only the selected graphs of training, evaluation and optimizer",
    )
    checkpoint_writing: str = _option(
        (ON, OFF),
        "writing of checkpoints on the device",
        SOURCES,
        effect="no writing of checkpoints",
        min_size=OFF,
        tradeoff="What was trained cannot be saved as a checkpoint; parameters can be read.",
    )
    rollback: str = _option(
        (ON, OFF),
        "restore running statistics, seeds and the step count when a call fails",
        SOURCES,
        effect="no rollback of failed calls",
        min_size=OFF,
        tradeoff="A refused training step, such as one with a bad label, may have changed running statistics and "
        "Dropout's seed.",
    )
    finite_checks: str = _option(
        (GRADIENTS, LOSS, ALL, OFF),
        "refuse NaN and infinity: optimizer steps with such gradients or learning rate, training steps with such "
        "a loss, both (all), or neither (off)",
        SOURCES,
        effect="no check that gradients are finite",
        min_size=OFF,
        tradeoff="One NaN in a batch makes every parameter NaN, without an error.",
    )
    denormals: str = _option(
        ("flush", "keep"),
        "denormal numbers, which many processors are slow with: zero during a call, or kept",
        SOURCES,
        effect="denormals are not flushed to zero",
    )
    checkpoint_checks: str = _option(
        (ON, OFF),
        "checkpoints with a checksum, with which a damaged one is refused, and with seeds and learning rate, with "
        "which training goes on as if it had not stopped",
        SOURCES,
        effect="no checksum and no seeds in checkpoints",
        min_size=OFF,
        tradeoff="Damaged checkpoints may be accepted, and seeds and learning rate are not saved.",
    )
    accept_checkpoint: str = _option(
        (SAME, ANY),
        "checkpoints to load where they have --checkpoint-checks: those of the same model, or any with parameters of "
        "the same names, types and shapes",
        SOURCES,
        effect="checkpoints of any model with the same parameters are accepted",
        min_size=ANY,
        tradeoff="A checkpoint of another model with the same parameters is accepted.",
    )
    file_io: str = _option(
        (ON, OFF),
        "functions that need a file system; without them, the program provides plan, checkpoint and memory",
        SOURCES,
        effect="no functions that need a file system",
        min_size=OFF,
        tradeoff="Sessions are created from bytes and memory that the program provides; no file is "
        "read or written.",
    )
    error_messages: str = _option(
        ("text", "codes"),
        "error messages in words, or codes for `minbuild explain`",
        SOURCES,
        effect="errors are codes for `minbuild explain`",
        min_size="codes",
        tradeoff="Error messages are codes; `minbuild explain` translates them.",
        smallest="codes",
    )
    strip: str = _option(
        (ON, OFF),
        "strip debug symbols",
        LINKER,
        neutral=OFF,
        effect="no debug symbols",
        tradeoff="Debuggers see addresses.",
    )
    unwind_tables: str = _option(
        (OFF, ON),
        "tables for stack traces",
        COMPILER,
        neutral=ON,
        effect="no tables for stack traces and exceptions",
        tradeoff="Debuggers and profilers see no callers.",
    )
    visibility: str = _option(
        ("hidden", "default"),
        "exported functions: those of the API, or all",
        COMPILER,
        neutral="default",
        effect="only the API is exported",
        tradeoff="Programs cannot call other functions.",
    )
    gc_sections: str = _option(
        (ON, OFF),
        "remove unreachable functions and data",
        COMPILER,
        neutral=OFF,
        effect="unreachable functions and data are removed",
        tradeoff="Functions that the API does not reach are missing.",
    )
    optimize: str = _option(
        ("size", "speed"),
        "optimization goal of the compiler",
        COMPILER,
        neutral="speed",
        effect="optimised for size, except hot loops",
        tradeoff="Steps may take longer.",
        fastest="speed",
    )
    speed_for: tuple[str, ...] = _option(
        (), "kernels to compile for speed, regardless of --optimize", COMPILER, default=(), multiple=True
    )
    size_for: tuple[str, ...] = _option(
        (), "kernels to compile for size, regardless of --optimize", COMPILER, default=(), multiple=True
    )
    lto: str = _option(
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
    icf: str = _option(
        (ON, OFF),
        "identical code folding",
        LINKER,
        neutral=OFF,
        effect="identical functions are folded",
        tradeoff="Debuggers may show another function with the same code.",
    )
    section_headers: str = _option(
        ("needed", "all"),
        "section headers and hash buckets to keep: those that loaders and linkers read, or all",
        LINKER,
        neutral="all",
        effect="no section headers and hash buckets that no loader reads",
        tradeoff="Tools find fewer sections by name.",
    )
    max_page_size: str = _option(
        ("target", "4096", "16384", "65536"),
        "largest memory page that the library supports: that of the target, or bytes",
        LINKER,
    )
    avx512: str = _option(
        (OFF, ON),
        "an AVX-512 variant of matrix products, selected at run time on x86-64",
        COMPILER,
        fastest=ON,
    )

    def speeds(self, kernel: str) -> bool:
        """True if a kernel file is compiled for speed."""
        return kernel in self.speed_for or self.optimize == "speed" and kernel not in self.size_for

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
