"""Structures of ELF files, 32 and 64 bit, little endian: headers, sections, segments, symbols. Reads hostile bytes
safely: every range is checked against the file before it is touched, and what does not fit is a BadInput that says
where."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from minbuild.errors import BadInput
from minbuild.formats.object_file import Structure

MAGIC = b"\x7fELF"
RELOCATABLE, EXECUTABLE, SHARED = 1, 2, 3
SYMTAB, STRTAB, NOBITS, DYNSYM = 2, 3, 8, 11  # section types
ALLOC = 2  # section flag
LOAD = 1  # segment type
NOTYPE, OBJECT, FUNC, FILE, TLS, IFUNC = 0, 1, 2, 4, 6, 10  # symbol types
GLOBAL, WEAK = 1, 2  # symbol bindings
RESERVED = 0xFF00  # section indices from here on are no sections (absolute, common)
ARM = 40  # machine whose function addresses carry the Thumb bit

# Headers by word size, from the System V ABI. A symbol's fields stand in another order in 64-bit files.
_HEADER = {32: struct.Struct("<HHIIIIIHHHHHH"), 64: struct.Struct("<HHIQQQIHHHHHH")}
_SECTION = {32: struct.Struct("<IIIIIIIIII"), 64: struct.Struct("<IIQQQQIIQQ")}
_SEGMENT = {32: struct.Struct("<IIIIIIII"), 64: struct.Struct("<IIQQQQQQ")}
_SYMBOL = {32: struct.Struct("<IIIBBH"), 64: struct.Struct("<IBBHQQ")}


@dataclass(frozen=True, slots=True)
class ElfSection:
    """A section header with its name resolved; offsets and sizes in bytes."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    entry: int

    @property
    def file_size(self) -> int:
        return 0 if self.type == NOBITS else self.size

    @property
    def allocated(self) -> bool:
        return bool(self.flags & ALLOC)


@dataclass(frozen=True, slots=True)
class Segment:
    """A program header."""

    type: int
    offset: int
    address: int
    file_size: int
    memory_size: int


@dataclass(frozen=True, slots=True)
class ElfSymbol:
    """A symbol table entry under its linker name. `section` is 0 when undefined."""

    name: str
    address: int
    size: int
    type: int
    binding: int
    section: int

    @property
    def defined(self) -> bool:
        return 0 < self.section < RESERVED


@dataclass(frozen=True, slots=True)
class Elf:
    """The headers of one file. `structures` are the headers themselves: (name, offset, size)."""

    label: str
    bits: int
    kind: int
    machine: int
    structures: tuple[Structure, ...]
    sections: tuple[ElfSection, ...]  # without the null section, so index = ELF index - 1
    segments: tuple[Segment, ...]
    data: bytes

    def symbols(self, table: int) -> tuple[ElfSymbol, ...]:
        """The entries of the tables of one type (SYMTAB or DYNSYM), the null entry left out."""
        found: list[ElfSymbol] = []
        for section in self.sections:
            if section.type == table:
                found.extend(_read_symbols(self, section))
        return tuple(found)


def parse(label: str, data: bytes) -> Elf:
    """Reads the headers of an ELF file. `label` names it in errors. Raises BadInput."""
    if data[:4] != MAGIC:
        raise BadInput(
            f"{label}: not an ELF file, it starts with {data[:4].hex(' ') or 'nothing'}. Build it again."
        )
    bits = {1: 32, 2: 64}.get(data[4] if len(data) > 4 else 0)
    if bits is None or data[5:6] != b"\x01":
        raise BadInput(
            f"{label}: an ELF file of a kind no trainer is built as (class and byte order "
            f"{data[4:6].hex(' ')}); only little endian with 32 or 64 bits is read."
        )
    header = _HEADER[bits]
    _need(label, data, 16, header.size, "the ELF header")
    (
        kind,
        machine,
        _,
        _,
        segment_at,
        section_at,
        _,
        header_size,
        segment_entry,
        segment_count,
        section_entry,
        section_count,
        name_index,
    ) = header.unpack_from(data, 16)
    if section_at and not section_count:
        section_count = _long_count(label, data, section_at, bits)
    raw = _table(
        label,
        data,
        at=section_at,
        entry=section_entry,
        count=section_count,
        layout=_SECTION[bits],
        what="section headers",
    )
    if name_index == 0xFFFF and raw:
        name_index = raw[0][6]
    spans = [("ELF header", 0, header_size)]
    if segment_count:
        spans.append(("program headers", segment_at, segment_entry * segment_count))
    if section_count:
        spans.append(("section headers", section_at, section_entry * section_count))
    segments = _table(
        label,
        data,
        at=segment_at,
        entry=segment_entry,
        count=segment_count,
        layout=_SEGMENT[bits],
        what="program headers",
    )
    return Elf(
        label,
        bits=bits,
        kind=kind,
        machine=machine,
        structures=tuple(spans),
        sections=tuple(_sections(label, data, raw, name_index)),
        segments=tuple(_segment(bits, s) for s in segments),
        data=data,
    )


def _long_count(label: str, data: bytes, at: int, bits: int) -> int:
    """The section count a file with too many sections for its header keeps in the null section's size."""
    _need(label, data, at, _SECTION[bits].size, "the first section header")
    return int(_SECTION[bits].unpack_from(data, at)[5])


def _need(label: str, data: bytes, at: int, size: int, what: str) -> None:
    if at < 0 or size < 0 or at + size > len(data):
        raise BadInput(
            f"{label}: truncated or damaged ELF file: {what} should end at byte {at + size}, "
            f"the file has {len(data)}. Build it again."
        )


def _table(
    label: str, data: bytes, at: int, entry: int, count: int, layout: struct.Struct, what: str
) -> list[tuple[int, ...]]:
    if not count:
        return []
    if entry < layout.size:
        raise BadInput(
            f"{label}: damaged ELF file: {what} have entries of {entry} bytes, "
            f"{layout.size} are needed. Build it again."
        )
    _need(label, data, at, entry * count, f"the table of {what}")
    return [layout.unpack_from(data, at + i * entry) for i in range(count)]


def _sections(label: str, data: bytes, raw: list[tuple[int, ...]], name_index: int) -> Iterator[ElfSection]:
    names = b""
    if raw and name_index < len(raw):
        at, size = raw[name_index][4:6]
        _need(label, data, at, size, "the table of section names")
        names = data[at : at + size]
    for name, kind, flags, address, offset, size, link, _, _, entry in raw[1:]:
        title = _string(label, names, name)
        if kind not in (0, NOBITS):
            _need(label, data, offset, size, f"section {title or '(unnamed)'}")
        yield ElfSection(
            title, type=kind, flags=flags, address=address, offset=offset, size=size, link=link, entry=entry
        )


def _segment(bits: int, raw: tuple[int, ...]) -> Segment:
    if bits == 64:
        kind, _, offset, address, _, file_size, memory_size, _ = raw
    else:
        kind, offset, address, _, file_size, memory_size, _, _ = raw
    return Segment(kind, offset, address, file_size, memory_size)


def _string(label: str, table: bytes, at: int) -> str:
    end = table.find(b"\0", at)
    if at and (at >= len(table) or end < 0):
        raise BadInput(
            f"{label}: damaged ELF file: name at byte {at} of a string table of {len(table)} "
            f"bytes. Build it again."
        )
    return table[at:end].decode("utf-8", "replace") if end > at else ""


def _read_symbols(elf: Elf, section: ElfSection) -> Iterator[ElfSymbol]:
    layout = _SYMBOL[elf.bits]
    if not 0 < section.link <= len(elf.sections):
        raise BadInput(
            f"{elf.label}: damaged ELF file: {section.name} names section {section.link} as its "
            f"strings, there are {len(elf.sections)}. Build it again."
        )
    strings = elf.sections[section.link - 1]
    names = elf.data[strings.offset : strings.offset + strings.file_size]
    entry = max(section.entry, layout.size)
    for at in range(section.offset + entry, section.offset + section.size - layout.size + 1, entry):
        if elf.bits == 64:
            name, info, _, index, value, size = layout.unpack_from(elf.data, at)
        else:
            name, value, size, info, _, index = layout.unpack_from(elf.data, at)
        kind = info & 15
        if elf.machine == ARM and kind in (FUNC, IFUNC):
            value &= ~1  # bit 0 says Thumb, it is no part of the address
        yield ElfSymbol(
            _string(elf.label, names, name),
            address=value,
            size=size,
            type=kind,
            binding=info >> 4,
            section=index,
        )
