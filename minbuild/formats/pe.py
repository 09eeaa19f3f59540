"""Windows libraries (PE) and objects (COFF) of 64-bit machines: headers, sections, exports, imports, the symbol table
that an unstripped link leaves behind the sections. Layouts are those of Microsoft's PE format specification."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from minbuild import ir as model
from minbuild.errors import BadInput
from minbuild.formats.checked_reader import Bytes, same_sections, sized
from minbuild.formats.object_file import ObjectSymbol, Structure

_MACHINES = (b"\x64\x86", b"\x64\xaa")  # x86-64 and aarch64, the first bytes of an object
MAGICS = (b"MZ", *_MACHINES)
_COFF = struct.Struct("<HHIIIHH")  # machine, sections, time, symbol table, symbols, optional header, flags
_SECTION = struct.Struct("<8sIIIIIIHHI")
_SYMBOL = struct.Struct("<8sIhHBB")
_WORD = struct.Struct("<I")
_EXPORTS = struct.Struct("<IIHHIIIIIII")
_IMPORTS = struct.Struct("<IIIII")
_DIRECTORIES_AT = 112  # in the optional header of 64-bit files
_EXTERNAL, _STATIC, _WEAK = 2, 3, 105  # storage classes
_COMDAT, _UNINITIALISED = 0x1000, 0x80  # flags of sections
_ANY = (2, 3, 4, 6)  # selections of a COMDAT that several objects may define
_HIGHEST_BIT = 1 << 63


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    address: int
    size: int  # in memory; of an object, in the file
    offset: int
    raw: int
    flags: int

    @property
    def file_size(self) -> int:
        return 0 if self.flags & _UNINITIALISED else min(self.raw, self.size)


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    value: int
    section: int  # from 1; 0 undefined, negative for none
    storage: int
    auxiliary: bytes


@dataclass(frozen=True, slots=True)
class _File:
    bytes: Bytes
    coff_at: int
    optional: int  # bytes of the optional header, 0 in objects
    sections: tuple[_Section, ...]
    symbols_at: int
    symbol_count: int

    @property
    def headers(self) -> int:
        return self.coff_at + _COFF.size + self.optional

    def offset(self, address: int) -> int:
        """Where in the file a relative address is. Raises BadInput outside of what is stored."""
        for s in self.sections:
            if s.address <= address < s.address + s.file_size:
                return s.offset + address - s.address
        raise BadInput(
            f"{self.bytes.label}: damaged PE file: no section holds address {address:#x}. Build it again."
        )

    def directory(self, number: int) -> int:
        """The address of a data directory, 0 for none."""
        at = self.coff_at + _COFF.size + _DIRECTORIES_AT + 8 * number
        return self.bytes.unpack(_WORD, at, "the data directories")[0] if at + 8 <= self.headers else 0

    def word(self, address: int) -> int:
        return self.bytes.unpack(_WORD, self.offset(address), "a table")[0]

    def text(self, address: int) -> str:
        at = self.offset(address)
        return self.bytes.text(at, len(self.bytes.data))

    def symbols(self) -> Iterator[_Symbol]:
        """The symbol table with long names resolved; auxiliary records stand with their symbol."""
        strings = self.symbols_at + self.symbol_count * _SYMBOL.size
        number = 0
        while number < self.symbol_count:
            at = self.symbols_at + number * _SYMBOL.size
            raw, value, section, _, storage, more = _fields(_SYMBOL, self.bytes, at, "the symbol table")
            extra = self.bytes.data[at + _SYMBOL.size : at + _SYMBOL.size * (1 + more)]
            name = _long_name(self.bytes, raw, strings)
            yield _Symbol(name, value, section, storage, extra)
            number += 1 + more


def _fields(layout: struct.Struct, file: Bytes, at: int, what: str) -> tuple:  # type: ignore[type-arg]
    file.need(at, layout.size, what)
    return layout.unpack_from(file.data, at)


def _long_name(file: Bytes, raw: bytes, strings: int) -> str:
    if raw[:4] == b"\0\0\0\0":
        return file.text(strings + int.from_bytes(raw[4:], "little"), len(file.data))
    if raw[:1] == b"/" and raw[1:].rstrip(b"\0").isdigit():
        return file.text(strings + int(raw[1:].rstrip(b"\0")), len(file.data))
    return raw.rstrip(b"\0").decode("utf-8", "replace")


def _parse(label: str, data: bytes) -> _File:
    file = Bytes(label, "PE", data)
    at = 0
    if data[:2] == b"MZ":
        (at,) = file.unpack(_WORD, 0x3C, "the DOS header")
        if data[at : at + 4] != b"PE\0\0":
            raise BadInput(f"{label}: damaged PE file: no PE signature at byte {at}. Build it again.")
        at += 4
    if data[at : at + 2] not in _MACHINES:
        raise BadInput(
            f"{label}: a Windows file for machine {data[at : at + 2].hex(' ')}; only x86-64 and aarch64 are read."
        )
    _, count, _, symbols_at, symbol_count, optional, _ = file.unpack(_COFF, at, "the COFF header")
    file.need(symbols_at, symbol_count * _SYMBOL.size, "the symbol table")
    strings = symbols_at + symbol_count * _SYMBOL.size
    sections = []
    for number in range(count):
        place = at + _COFF.size + optional + number * _SECTION.size
        raw, memory, address, size, offset, _, _, _, _, flags = _fields(
            _SECTION, file, place, "the section headers"
        )
        name = _long_name(file, raw, strings)
        if size and not flags & _UNINITIALISED:
            file.need(offset, size, f"section {name}")
        sections.append(
            _Section(name, address=address, size=memory or size, offset=offset, raw=size, flags=flags)
        )
    return _File(
        file,
        coff_at=at,
        optional=optional,
        sections=tuple(sections),
        symbols_at=symbols_at,
        symbol_count=symbol_count,
    )


def structures(label: str, data: bytes) -> tuple[Structure, ...]:
    """The headers, and symbols left in. Raises BadInput."""
    file = _parse(label, data)
    spans = [
        ("DOS header", 0, file.coff_at),
        ("PE header", file.coff_at, file.headers - file.coff_at),
        ("section headers", file.headers, len(file.sections) * _SECTION.size),
    ]
    if file.symbol_count:
        spans.append(("symbols left in", file.symbols_at, len(data) - file.symbols_at))
    return tuple(s for s in spans if s[2])


def object_symbols(label: str, data: bytes) -> Iterator[ObjectSymbol]:
    """The symbols of an object: functions, variables, and what it uses. Raises BadInput."""
    file = _parse(label, data)
    several = set()  # sections that other objects may define as well
    for symbol in file.symbols():
        if (
            symbol.storage == _STATIC
            and symbol.value == 0
            and len(symbol.auxiliary) >= 15
            and symbol.section > 0
        ):
            flags = file.sections[symbol.section - 1].flags if symbol.section <= len(file.sections) else 0
            if flags & _COMDAT and symbol.auxiliary[14] in _ANY:
                several.add(symbol.section)
        elif symbol.storage in (_EXTERNAL, _STATIC, _WEAK) and not symbol.name.startswith((".", "@")):
            strong = symbol.storage == _EXTERNAL and symbol.section > 0 and symbol.section not in several
            yield ObjectSymbol(symbol.name, symbol.section > 0, strong)


def read_binary(label: str, target: str, stripped: bytes, unstripped: bytes) -> model.Binary:
    """The Binary of a shipped library and its unstripped copy; addresses are relative to where it is loaded.

    `label` names the file in messages, `target` is its target's name, `stripped` and `unstripped` are the bytes of
    both. Raises BadInput for damaged files and for a copy from another link."""
    shipped, full = _parse(label, stripped), _parse(f"{label} (unstripped)", unstripped)
    sections = _listed(shipped)
    same_sections(label, sections, _listed(full))
    names = [s.name for s in full.sections]
    places = [
        (full.sections[s.section - 1].address + s.value, names[s.section - 1], _label(s.name))
        for s in full.symbols()
        if 0 < s.section <= len(names) and s.storage in (_EXTERNAL, _STATIC) and s.name not in names
    ]
    return model.Binary(
        path=label,
        target=target,
        data=stripped,
        sections=sections,
        symbols=tuple(sized(places, {s.name: s for s in sections})),
        exports=tuple(sorted(_exported(shipped))),
        imports=tuple(sorted(set(_imported(shipped)))),
    )


def _label(name: str) -> str:
    """Labels of the compiler (`.str.3`) as other formats have them."""
    return f".L{name}" if name.startswith(".") else name


def _listed(file: _File) -> tuple[model.Section, ...]:
    return tuple(
        model.Section(
            s.name, address=s.address, offset=s.offset, size=s.size, file_size=s.file_size, allocated=True
        )
        for s in file.sections
    )


def _exported(file: _File) -> Iterator[str]:
    at = file.directory(0)
    if at:
        fields = file.bytes.unpack(_EXPORTS, file.offset(at), "the export directory")
        count, names = fields[7], fields[9]
        for number in range(count):
            yield file.text(file.word(names + 4 * number))


def _imported(file: _File) -> Iterator[str]:
    at = file.directory(1)
    while at:
        lookup, _, _, name, addresses = file.bytes.unpack(_IMPORTS, file.offset(at), "the import directory")
        if not name:
            return
        entry = lookup or addresses
        while value := file.word(entry) | file.word(entry + 4) << 32:
            # By number, or by a name behind two bytes of hint.
            yield f"{file.text(name)}#{value & 0xFFFF}" if value & _HIGHEST_BIT else file.text(value + 2)
            entry += 8
        at += _IMPORTS.size
