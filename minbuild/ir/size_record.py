"""The figures of a report that are worth keeping: what a difference, a budget and a line of history are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Entry:
    """The bytes of one owner in the file. `users` are the model's operators that an operator's kernels serve."""

    kind: str
    name: str
    bytes: int
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TargetFigures:
    """One target: what it was built with, and bytes."""

    target: str
    toolchain: str
    flags: tuple[str, ...]
    file: int
    loaded: int
    download: int
    ram: int
    static: int
    entries: tuple[Entry, ...]
    stack: int | None = None  # the deepest; None where it was not measured
    session: int = 0  # tables and stacks of threads; 0 in figures of before they were counted


@dataclass(frozen=True, slots=True)
class SizeRecord:
    """One report. `files` are the model's with their sha256, `sizes` those of free dimensions, `memory` the bytes of
    each graph's arena and of each part of what persists. `build_options`
    are how it was built, none where that is not known; `commit` is what a CI service calls the state of the source."""

    model: str
    minbuild: str
    files: Mapping[str, str]
    sizes: Mapping[str, int]
    arenas: Mapping[str, int]
    persistent: Mapping[str, int]
    plan: int
    targets: tuple[TargetFigures, ...]
    build_options: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""

    @property
    def arena(self) -> int:
        """Bytes of the largest arena: one serves all graphs."""
        return max(self.arenas.values(), default=0)
