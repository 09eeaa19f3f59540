"""Mach-O libraries and objects, 64 bit, little endian: load commands, sections, the symbol table, and the tables of
the loader at the end of the file. Names and numbers are those of Apple's loader.h and nlist.h."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from minbuild import ir as model
from minbuild.errors import BadInput
from minbuild.formats.checked_reader import Bytes, same_sections, sized
from minbuild.formats.object_file import ObjectSymbol, Structure

MAGIC = b"\xcf\xfa\xed\xfe"
MAGICS = (MAGIC,)
_HEADER = struct.Struct("<IIIIIIII")
_COMMAND = struct.Struct("<II")
_SEGMENT = struct.Struct("<QQQQIIII")  # behind the name
_SECTION = struct.Struct("<QQIIIIIIII")  # behind both names
_SYMBOL = struct.Struct("<IBBHQ")
_SEGMENT_64, _SYMTAB, _DYSYMTAB = 0x19, 0x2, 0xB
_DYLD_INFO = (0x22, 0x80000022)
# Commands that only say where a table of the loader is.
_TABLES = {
    0x1D: "code signature",
    0x1E: "segment split",
    0x26: "function starts",
    0x29: "data in code",
    0x2B: "designated requirements",
    0x2E: "linker optimization hints",
    0x80000033: "export trie",
    0x80000034: "fixups",
}
_DYLD_TABLES = ("rebasing", "binding", "weak binding", "lazy binding", "export trie")
_ZERO_FILLED = (0x1, 0xC, 0x12)  # types of sections without contents
_STAB, _PRIVATE, _TYPE, _EXTERNAL = 0xE0, 0x10, 0x0E, 0x01  # parts of a symbol's type
_UNDEFINED, _IN_SECTION = 0x0, 0xE
_WEAK_DEFINITION = 0x80
_OF_THE_LINKER = ("__mh_dylib_header", "___dso_handle")  # mark the file's start


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    kind: int
    section: int
    description: int
    value: int

    @property
    def external(self) -> bool:
        return bool(self.kind & _EXTERNAL) and not self.kind & _PRIVATE and self.name not in _OF_THE_LINKER

    @property
    def undefined(self) -> bool:
        return self.kind & _TYPE == _UNDEFINED

    @property
    def placed(self) -> bool:
        return self.kind & _TYPE == _IN_SECTION


@dataclass(frozen=True, slots=True)
class _File:
    bytes: Bytes
    sections: tuple[model.Section, ...]
    symbols: tuple[_Symbol, ...]
    structures: tuple[Structure, ...]


def _parse(label: str, data: bytes) -> _File:
    file = Bytes(label, "Mach-O", data)
    if data[:4] != MAGIC:
        raise BadInput(f"{label}: no Mach-O file of 64 bits. Build it again.")
    _, _, _, _, count, size, _, _ = file.unpack(_HEADER, 0, "the header")
    file.need(_HEADER.size, size, "the load commands")
    sections: list[model.Section] = []
    symbols: list[_Symbol] = []
    structures: list[Structure] = [("Mach-O header and load commands", 0, _HEADER.size + size)]
    at = _HEADER.size
    for _ in range(count):
        command, length = file.unpack(_COMMAND, at, "a load command")
        if length < _COMMAND.size or at + length > _HEADER.size + size:
            raise BadInput(f"{label}: damaged Mach-O file: load command at byte {at}. Build it again.")
        if command == _SEGMENT_64:
            sections += _sections(file, at + _COMMAND.size)
        elif command == _SYMTAB:
            found, tables = _symbols(file, at + _COMMAND.size)
            symbols += found
            structures += tables
        else:
            structures += _tables(file, command, at + _COMMAND.size)
        at += length
    for name, offset, length in structures:
        file.need(offset, length, name)
    return _File(file, tuple(sections), tuple(symbols), tuple(s for s in structures if s[2]))


def _words(file: Bytes, at: int, count: int) -> tuple[int, ...]:
    return file.unpack(struct.Struct(f"<{count}I"), at, "a load command")


def _sections(file: Bytes, at: int) -> Iterator[model.Section]:
    count = file.unpack(_SEGMENT, at + 16, "a segment")[6]
    for number in range(count):
        place = at + 16 + _SEGMENT.size + number * (32 + _SECTION.size)
        address, size, offset, _, _, _, flags, *_ = file.unpack(_SECTION, place + 32, "a section header")
        name = file.text(place, place + 16)
        stored = 0 if flags & 0xFF in _ZERO_FILLED else size
        if stored:
            file.need(offset, size, f"section {name}")
        yield model.Section(name, address=address, offset=offset, size=size, file_size=stored, allocated=True)


def _symbols(file: Bytes, at: int) -> tuple[list[_Symbol], list[Structure]]:
    start, count, strings, size = _words(file, at, 4)
    file.need(start, count * _SYMBOL.size, "the symbol table")
    found = []
    for number in range(count):
        name, kind, section, description, value = file.unpack(
            _SYMBOL, start + number * _SYMBOL.size, "the symbol table"
        )
        found.append(_Symbol(file.text(strings + name, strings + size), kind, section, description, value))
    return found, [("symbols", start, count * _SYMBOL.size), ("symbol names", strings, size)]


def _tables(file: Bytes, command: int, at: int) -> list[Structure]:
    if command in _TABLES:
        offset, size = _words(file, at, 2)
        return [(_TABLES[command], offset, size)]
    if command in _DYLD_INFO:
        words = _words(file, at, 10)
        return [(name, *words[2 * i : 2 * i + 2]) for i, name in enumerate(_DYLD_TABLES)]  # type: ignore[misc]
    if command == _DYSYMTAB:
        words = _words(file, at, 18)
        return [("indirect symbols", words[12], 4 * words[13])]
    return []


def structures(label: str, data: bytes) -> tuple[Structure, ...]:
    """The headers and the tables of the loader. Raises BadInput."""
    return _parse(label, data).structures


def object_symbols(label: str, data: bytes) -> Iterator[ObjectSymbol]:
    """The symbols of an object, without labels. Raises BadInput."""
    for s in _parse(label, data).symbols:
        name = _plain(s.name)
        if not s.kind & _STAB and name and not s.name.startswith(("L", "l")):
            strong = s.placed and bool(s.kind & _EXTERNAL) and not s.description & _WEAK_DEFINITION
            yield ObjectSymbol(name, s.placed, strong)


def read_binary(label: str, target: str, stripped: bytes, unstripped: bytes) -> model.Binary:
    """The Binary of a shipped library and its unstripped copy.

    `label` names the file in messages, `target` is its target's name, `stripped` and `unstripped` are the bytes of
    both. Raises BadInput for damaged files and for a copy from another link."""
    shipped, full = _parse(label, stripped), _parse(f"{label} (unstripped)", unstripped)
    same_sections(label, shipped.sections, full.sections)
    places = [
        (s.value, full.sections[s.section - 1].name, _plain(s.name))
        for s in full.symbols
        if not s.kind & _STAB
        and s.placed
        and s.name not in _OF_THE_LINKER
        and 0 < s.section <= len(full.sections)
    ]
    return model.Binary(
        path=label,
        target=target,
        data=stripped,
        sections=shipped.sections,
        symbols=tuple(sized(places, {s.name: s for s in shipped.sections})),
        exports=tuple(sorted(_plain(s.name) for s in shipped.symbols if s.external and s.placed)),
        imports=tuple(sorted(_plain(s.name) for s in shipped.symbols if s.external and s.undefined)),
    )


def _plain(name: str) -> str:
    """The name without the underscore that C names have on this system."""
    return name[1:] if name.startswith("_") else name
