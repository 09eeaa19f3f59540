"""The smaller of two forms of the same package: bytes of library and plan on every target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minbuild.toolchain import Target


@dataclass(frozen=True, slots=True)
class Form:
    """A form by its name: bytes of its plans, 0 without a plan file, and of its library on each target."""

    name: str
    plan: int
    libraries: tuple[int, ...]

    @property
    def bytes(self) -> tuple[int, ...]:
        """Bytes of library and plans on each target."""
        return tuple(library + self.plan for library in self.libraries)

    def in_words(self, target: int) -> str:
        """The bytes on the target of that number."""
        plan = f" and plan {self.plan:,} B" if self.plan else ""
        return f"library {self.libraries[target]:,} B{plan}, {self.name}"


def smaller(kind: str, forms: tuple[Form, Form], targets: Sequence[Target]) -> tuple[Form, str]:
    """The one of `forms` that takes fewer bytes on all `targets` together, the first of equals, and a sentence on both,
    which begins with `kind` and names targets where the other takes fewer by itself."""
    chosen, other = sorted(forms, key=lambda form: sum(form.bytes))
    saved = [theirs - ours for ours, theirs in zip(chosen.bytes, other.bytes, strict=True)]
    each = [
        f"{target}: {f'{-n:,} B more; ' if n < 0 else ''}{chosen.in_words(i)}; {other.in_words(i)}"
        for i, (target, n) in enumerate(zip(targets, saved, strict=True))
    ]
    start = f"{kind} {chosen.name} saves {sum(saved):,} B on "
    if len(each) == 1:
        return chosen, f"{start}{each[0]}."
    alone = [str(target) for target, n in zip(targets, saved, strict=True) if n < 0]
    hint = f" By itself {' and '.join(alone)} would have {other.name}." if alone else ""
    return chosen, f"{start}{len(each)} targets together. {'. '.join(each)}.{hint}"
