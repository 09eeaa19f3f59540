"""A row of the table of build options: its values, meaning and defaults, and how users write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minbuild.options.byte_sizes import parse_size

ON, OFF = "on", "off"
# Other spellings of on and off, in TOML and in environment variables.
_SPELLINGS = {"true": ON, "yes": ON, "1": ON, "false": OFF, "no": OFF, "0": OFF}


Value = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuildOption:
    """One row of the table. `values` are the words to choose from, none where names of kernels are given; `multiple`
    says whether more than one may be, `sized` whether a number of bytes may stand in their place. `neutral` is what a
    build has that does nothing for size; `effect` what the waterfall says of anything else, "" where that is not there
    to save bytes. `min_size` is what makes the smallest library and `tradeoff` what is given up for it, "" where that
    is not worth proposing; `proposal` is its name among suggestions, "" where `effect` is. `profiles` are the values
    that differ from those of the default profile."""

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
    sized: bool
    profiles: Mapping[str, Value]
    numbers: tuple[int, int] | None = None  # the least and the largest number that may stand for a word
    names: str = ""  # what may be named, where there are no values
    proposal: str = ""

    @property
    def title(self) -> str:
        """Its name among suggestions."""
        return self.proposal or self.effect

    @property
    def key(self) -> str:
        """Its name in settings, and behind two dashes on the command line."""
        return self.name.replace("_", "-")

    @property
    def allowed(self) -> str:
        """The values in words."""
        if not self.values:
            return self.names
        if self.sized:
            return f"{', '.join(self.values)}, or bytes such as 4096 or '4 KiB'"
        between = f", or a number from {self.numbers[0]} to {self.numbers[1]}" if self.numbers else ""
        return ", ".join(self.values) + (", or several of them" if self.multiple else "") + between

    def read(self, given: object) -> Value | None:
        """The value of what a user wrote, a word, a number, or a list of those; None where it is none."""
        words = given if isinstance(given, (list, tuple)) else [given]
        parts = [part.strip() for word in words for part in _text(word).split(",")]
        if self.sized:
            sizes = [parse_size(part) for part in parts if part not in self.values]
            if len(parts) != 1 or None in sizes or 0 in sizes:
                return None
            return str(sizes[0]) if sizes else parts[0]
        if self.numbers and len(parts) == 1 and parts[0].isdecimal():
            least, most = self.numbers
            if int(parts[0]) < least and OFF in self.values:
                return OFF  # one thread is the caller's own
            return str(int(parts[0])) if least <= int(parts[0]) <= most else None
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


def choice(
    values: tuple[str, ...],
    description: str,
    stage: str,
    *,
    default: Value | None = None,
    neutral: Value | None = None,
    effect: str = "",
    min_size: Value | None = None,
    tradeoff: str = "",
    proposal: str = "",
    multiple: bool = False,
    sized: bool = False,
    numbers: tuple[int, int] | None = None,
    names: str = "names of operators or of kernel files, such as Conv",
    **profiles: Value,
) -> Any:
    """A field of `BuildOptions`, with the rest of its row as metadata. Without `default` that is the first of the
    values, or all of them where several may be chosen; `neutral` and `min_size` are the default unless given; a
    number among `numbers` may stand for a value; without `values`, `names` describes what may be named. `values` are
    the names of the values, `description` is the help text, `stage` the part of a build that reads the option;
    `effect`, `tradeoff`, `proposal`, `multiple`, `sized` and `profiles` are fields of `BuildOption`."""
    first: Value = (values if multiple else values[0]) if default is None else default
    row: dict[str, Any] = {
        "numbers": numbers,
        "names": names,
        "values": values,
        "description": description,
        "stage": stage,
        "multiple": multiple,
        "sized": sized,
        "profiles": profiles,
    }
    row |= {"default": first, "neutral": first if neutral is None else neutral, "effect": effect}
    row |= {"min_size": first if min_size is None else min_size, "tradeoff": tradeoff}
    row |= {"proposal": proposal}
    return field(default=first, metadata=row)
