"""SizeDiff: the changes between two size records of one model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SizeChange:
    """Bytes before and after. `kind` is that of the owner, or "total" or "memory"."""

    kind: str
    name: str
    old: int
    new: int

    @property
    def delta(self) -> int:
        return self.new - self.old


@dataclass(frozen=True, slots=True)
class TargetSizeDiff:
    """The changes of one target: figures of the whole, then owners of bytes, the largest change first."""

    target: str
    figures: tuple[SizeChange, ...]
    rows: tuple[SizeChange, ...]


@dataclass(frozen=True, slots=True)
class SizeDiff:
    """Everything that changed. False when nothing did."""

    model: str
    causes: tuple[str, ...]
    memory: tuple[SizeChange, ...]
    targets: tuple[TargetSizeDiff, ...]
    added: tuple[str, ...]  # targets
    removed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.causes or self.memory or self.targets or self.added or self.removed)
