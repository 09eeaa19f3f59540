"""The interface of a reader of a binary format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from minbuild import ir as model

Structure = tuple[str, int, int]  # name, offset, size


@dataclass(frozen=True, slots=True)
class ObjectSymbol:
    """A function or variable that an object defines or uses, under its linker name. `strong`: no other object
    may define it."""

    name: str
    defined: bool
    strong: bool


class Reader(Protocol):
    """A module that reads one format. Every function raises BadInput for damaged files."""

    @property
    def MAGICS(self) -> tuple[bytes, ...]:  # noqa: N802  a constant of the module
        """The first bytes of such files."""

    def read_binary(self, label: str, target: str, stripped: bytes, unstripped: bytes) -> model.Binary:
        """The Binary of a shipped file and the unstripped copy of the same link, which lends its symbols. `label`
        names the file in messages, `target` is its target's name, `stripped` and `unstripped` are the bytes of
        both."""

    def structures(self, label: str, data: bytes) -> tuple[Structure, ...]:
        """The bytes that describe the file and belong to no section."""

    def object_symbols(self, label: str, data: bytes) -> Iterator[ObjectSymbol]:
        """The symbols that an object defines and uses, without labels of the compiler."""
