"""What a user may choose about a library, once: each choice with its values, what it does, what every profile makes of
it, and what it saves. Command line, settings files, documentation, compilers and the waterfall all read this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from minbuild.options.graph_selection import EVERY

PROFILES: Mapping[str, str] = {
    "smallest": "the trainer can do as much; errors are codes, and builds take longer",
    "balanced": "small, and errors say what is wrong in words",
    "fastest": "compiled for speed, at the price of size",
}
DEFAULT = "balanced"
ON, OFF = "on", "off"
PLAN, SOURCES, COMPILER, LINKER = "plan", "sources", "compiler", "linker"  # who carries a choice out
# What people write for on and off elsewhere: in TOML, and in variables of the environment.
_SPELLINGS = {"true": ON, "yes": ON, "1": ON, "false": OFF, "no": OFF, "0": OFF}

Value = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuildOption:
    """One row of the table. `values` are the words to choose from, none where names of kernels are given; `several`
    says whether more than one may be. `plain` is what a build has that does nothing for size; `saving` what the
    waterfall says of anything else, "" where that is not there to save bytes. `min_size` is what makes the smallest
    library and `tradeoff` what is given up for it, "" where that is not worth proposing. `profiles` are the values that
    differ from those of the default profile."""

    name: str  # of the field
    values: tuple[str, ...]
    what: str
    by: str
    default: Value
    plain: Value
    saving: str
    min_size: Value
    tradeoff: str
    several: bool
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
        return ", ".join(self.values) + (", or several of them" if self.several else "")

    def read(self, given: object) -> Value | None:
        """The value of what a user wrote, a word, a number, or a list of those; None where it is none."""
        words = given if isinstance(given, (list, tuple)) else [given]
        parts = [part.strip() for word in words for part in _text(word).split(",")]
        known = tuple(
            _SPELLINGS.get(p.lower(), p) if ON in self.values else p for p in dict.fromkeys(parts) if p
        )
        if not known or self.values and not set(known) <= set(self.values):
            return None
        if self.several:
            return tuple(v for v in self.values if v in known) or known
        return known[0] if len(known) == 1 else None

    def of(self, profile: str) -> Value:
        """Its value in a profile."""
        return self.profiles.get(profile, self.default)


def _text(word: object) -> str:
    return str(word).lower() if isinstance(word, bool) else str(word)


def _choice(
    values: tuple[str, ...],
    what: str,
    by: str,
    *,
    default: Value | None = None,
    plain: Value | None = None,
    saving: str = "",
    min_size: Value | None = None,
    tradeoff: str = "",
    several: bool = False,
    **profiles: Value,
) -> Any:
    first: Value = (values if several else values[0]) if default is None else default
    row: dict[str, Any] = {"values": values, "what": what, "by": by, "several": several, "profiles": profiles}
    row |= {"default": first, "plain": first if plain is None else plain, "saving": saving}
    row |= {"min_size": first if min_size is None else min_size, "tradeoff": tradeoff}
    return field(default=first, metadata=row)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The choices in force, in the order of the waterfall."""

    # First, for otherwise files of other steps end with as many bytes as fill a page.
    padding: str = _choice(
        (OFF, ON),
        "begin code and data on pages of their own in the file",
        LINKER,
        plain=ON,
        saving="code and data share pages of the file",
        tradeoff="The page of the file where code ends and data begin is in memory twice.",
    )
    features: str = _choice(
        ("used", "all"),
        "parts of kernels to hold: those that the models use, or all, so that other models of the same operators run",
        SOURCES,
        plain="all",
        saving="only the parts of kernels that it needs",
        tradeoff="Other models of the same operators may need what is left out.",
    )
    sizes: str = _choice(
        ("used", "all"),
        "arithmetic of sizes and loops over samples to hold: what the plans have, or all, for other models",
        SOURCES,
        plain="all",
        saving="only the size arithmetic and loops that its plan has",
        tradeoff="Other models of the same operators may need what is left out.",
    )
    graphs: tuple[str, ...] = _choice(
        EVERY,
        "what the device can run: training steps, evaluation, optimizer steps",
        PLAN,
        several=True,
        saving="only what the device shall run of training, evaluation and optimizer",
    )
    saving: str = _choice(
        (ON, OFF),
        "writing of checkpoints",
        SOURCES,
        saving="no writing of checkpoints",
        min_size=OFF,
        tradeoff="What was trained cannot be saved as a checkpoint; parameters can be read.",
    )
    files: str = _choice(
        (ON, OFF),
        "all that needs a file system; without, plan, checkpoint and memory come from the program",
        SOURCES,
        saving="nothing that needs a file system",
        min_size=OFF,
        tradeoff="Sessions are created from bytes and memory that the program provides; nothing is read from or "
        "written to files.",
    )
    messages: str = _choice(
        ("text", "codes"),
        "errors in words, or as codes that `minbuild explain` puts into words",
        SOURCES,
        saving="errors as codes that `minbuild explain` puts into words",
        min_size="codes",
        tradeoff="Texts of errors are short codes; `minbuild explain` puts them into words.",
        smallest="codes",
    )
    strip: str = _choice(
        (ON, OFF),
        "leave names for debuggers out",
        LINKER,
        plain=OFF,
        saving="no names for debuggers",
        tradeoff="Debuggers see addresses.",
    )
    unwind: str = _choice(
        (OFF, ON),
        "tables for stack traces",
        COMPILER,
        plain=ON,
        saving="no tables for stack traces and exceptions",
        tradeoff="Debuggers and profilers see no callers.",
    )
    visibility: str = _choice(
        ("hidden", "default"),
        "functions that programs can see: those of the API, or all",
        COMPILER,
        plain="default",
        saving="only the API is visible",
        tradeoff="Programs cannot call other functions.",
    )
    sections: str = _choice(
        (ON, OFF),
        "drop functions and data that nothing reaches",
        COMPILER,
        plain=OFF,
        saving="functions and data that nothing reaches are dropped",
        tradeoff="What the API does not reach is gone.",
    )
    optimize: str = _choice(
        ("size", "speed"),
        "what kernels are compiled for",
        COMPILER,
        plain="speed",
        saving="optimised for size, hot loops excepted",
        tradeoff="Steps may take longer.",
        fastest="speed",
    )
    speed_for: tuple[str, ...] = _choice(
        (), "kernels to compile for speed whatever --optimize says", COMPILER, default=(), several=True
    )
    size_for: tuple[str, ...] = _choice(
        (), "kernels to compile for size whatever --optimize says", COMPILER, default=(), several=True
    )
    lto: str = _choice(
        (OFF, ON),
        "link-time optimisation",
        COMPILER,
        saving="optimised as a whole when it is linked",
        min_size=ON,
        tradeoff="Builds take longer.",
        smallest=ON,
    )
    fold: str = _choice(
        (ON, OFF),
        "make equal functions one",
        LINKER,
        plain=OFF,
        saving="equal functions are one",
        tradeoff="Debuggers may name another function with the same code.",
    )
    headers: str = _choice(
        ("needed", "all"),
        "section headers and hash buckets: those that loaders and linkers read, or all",
        LINKER,
        plain="all",
        saving="no section headers and hash buckets that no loader reads",
        tradeoff="Tools find fewer sections by name.",
    )
    pages: str = _choice(
        ("target", "4096", "16384", "65536"),
        "largest page of memory that the library can be loaded into: the largest of the target, or so many bytes",
        LINKER,
    )
    avx512: str = _choice(
        (OFF, ON),
        "a third form of matrix products, which x86-64 processors with AVX-512 choose when they run",
        COMPILER,
        fastest=ON,
    )

    def speeds(self, kernel: str) -> bool:
        """Whether a kernel file is compiled for speed."""
        return kernel in self.speed_for or self.optimize == "speed" and kernel not in self.size_for

    def only(self, names: Iterable[str]) -> BuildOptions:
        """These choices, all others as they are by default: what a toolchain makes of them that honours these."""
        chosen: dict[str, Any] = {name: getattr(self, name) for name in names}
        return BuildOptions(**chosen)

    def without(self, name: str) -> BuildOptions:
        """The same, but nothing saved by the choice of that name."""
        plain: dict[str, Any] = {name: choice_of(name).plain}
        return replace(self, **plain)

    @property
    def savings(self) -> Mapping[str, str]:
        """The choices that are there to save bytes, by name, with what they do."""
        return {c.name: c.saving for c in table() if c.saving and getattr(self, c.name) != c.plain}

    @property
    def changed(self) -> Mapping[str, Value]:
        """What differs from the default profile, by name."""
        return {c.name: getattr(self, c.name) for c in table() if getattr(self, c.name) != c.default}

    @property
    def as_text(self) -> Mapping[str, str]:
        """Every choice by its key, in words, for reports."""
        values = {c.key: getattr(self, c.name) for c in table()}
        return {key: ",".join(v) if isinstance(v, tuple) else v for key, v in values.items()}


@cache
def table() -> tuple[BuildOption, ...]:
    """All choices, in their order."""
    return tuple(BuildOption(name=f.name, **f.metadata) for f in fields(BuildOptions))


def choice_of(name: str) -> BuildOption:
    """The row of a field."""
    return next(choice for choice in table() if choice.name == name)


def in_profile(profile: str) -> BuildOptions:
    """The choices that a profile makes."""
    made: dict[str, Any] = {choice.name: choice.of(profile) for choice in table()}
    return BuildOptions(**made)
