"""Package and Binary: the files of a package, and a linked library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minbuild.ir.mapped import FileBytes


@dataclass(frozen=True, slots=True)
class Package:
    """The text and bytes of every file of a package, by path relative to its root."""

    files: Mapping[str, FileBytes]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a linked file. `file_size` is 0 for sections without contents (.bss)."""

    name: str
    address: int
    offset: int
    size: int
    file_size: int
    allocated: bool


@dataclass(frozen=True, slots=True)
class Symbol:
    """A defined symbol with its demangled name and the section it lives in."""

    name: str
    section: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Binary:
    """A linked library: its bytes as shipped, and the symbols of the unstripped copy from the same link."""

    path: str
    target: str
    data: bytes  # the stripped file
    sections: tuple[Section, ...]  # of the stripped file
    symbols: tuple[Symbol, ...]  # of the unstripped copy
    exports: tuple[str, ...]
    imports: tuple[str, ...]
