"""Libraries, images and objects in ELF: their sections and symbols, and the bytes that only describe them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from minbuild import ir as model
from minbuild.errors import BadInput
from minbuild.formats.elf_format import (
    DYNSYM,
    EXECUTABLE,
    FILE,
    FUNC,
    GLOBAL,
    IFUNC,
    LOAD,
    MAGIC,
    NOBITS,
    NOTYPE,
    OBJECT,
    STRTAB,
    SYMTAB,
    TLS,
    WEAK,
    Elf,
    ElfSection,
    ElfSymbol,
    parse,
)
from minbuild.formats.object_file import ObjectSymbol, Structure
from minbuild.formats.symbol_names import demangle

__all__ = [
    "DYNSYM",
    "FUNC",
    "LOAD",
    "MAGICS",
    "NOBITS",
    "SYMTAB",
    "Elf",
    "ElfSection",
    "object_symbols",
    "parse",
    "read_binary",
    "structures",
]
MAGICS = (MAGIC,)


def structures(label: str, data: bytes) -> tuple[Structure, ...]:
    """The headers. Raises BadInput."""
    return parse(label, data).structures


def object_symbols(label: str, data: bytes) -> Iterator[ObjectSymbol]:
    """The symbols of an object, without labels that are named alike in every object. Raises BadInput."""
    for s in parse(label, data).symbols(SYMTAB):
        kept = s.type in (OBJECT, FUNC, TLS, IFUNC) or s.section == 0
        if kept and not s.name.startswith((".L", "$")):
            yield ObjectSymbol(s.name, s.defined, s.defined and s.binding == GLOBAL)


def read_binary(path_label: str, target: str, stripped: bytes, unstripped: bytes) -> model.Binary:
    """The Binary of a shipped file and the unstripped copy of the same link, which lends its symbols.

    Sections whose headers the shipped file has dropped come from the unstripped copy. Raises BadInput for damaged
    files and for a copy whose allocated sections lie elsewhere, because its symbols would name the wrong bytes.
    `path_label` names the file in messages, `target` is its target's name, `stripped` and `unstripped` are the bytes
    of both."""
    shipped, full = parse(path_label, stripped), parse(f"{path_label} (unstripped)", unstripped)
    _check_same_link(path_label, shipped.sections, full.sections)
    sections = (*shipped.sections, *_borrowed(shipped, full))
    names = {i + 1: s.name for i, s in enumerate(full.sections)}
    symbols = {
        (s.address, s.size, s.name): model.Symbol(demangle(s.name), names[s.section], s.address, s.size)
        for s in (*_placed_labels(full.symbols(SYMTAB)), *full.symbols(DYNSYM))
        if s.section in names
        and not s.name.startswith("$")  # marks of code and data on ARM
        and (s.type in (OBJECT, FUNC, TLS, IFUNC) or (s.type == NOTYPE and s.size))
    }
    dynamic = full.symbols(DYNSYM)
    return model.Binary(
        path=path_label,
        target=target,
        data=stripped,
        sections=tuple(
            model.Section(
                s.name,
                address=s.address,
                offset=s.offset,
                size=s.size,
                file_size=s.file_size,
                allocated=s.allocated,
            )
            for s in sections
            if s.type
        ),
        symbols=tuple(symbols[key] for key in sorted(symbols)),
        exports=tuple(sorted(_exported(full))),
        imports=tuple(sorted({s.name for s in dynamic if s.section == 0 and s.name})),
    )


def _exported(full: Elf) -> set[str]:
    """The exported symbols. An image has no table for that; there, linkers make everything hidden local."""
    if full.kind == EXECUTABLE:
        return {s.name for s in full.symbols(SYMTAB) if s.defined and s.binding == GLOBAL}
    return {s.name for s in full.symbols(DYNSYM) if s.defined and s.binding in (GLOBAL, WEAK)}


def _placed_labels(symbols: Iterable[ElfSymbol]) -> Iterator[ElfSymbol]:
    """The symbols with the source file, which stands before its locals in the table, in the names of compiler
    labels: `.L.str.3` is in many files and `.L.str.3 of session.cc` in one."""
    unit = ""
    for symbol in symbols:
        if symbol.type == FILE:
            unit = symbol.name
        elif symbol.name.startswith(".L") and unit and "switch.table" not in symbol.name:
            yield replace(symbol, name=f"{symbol.name} of {unit}")
        else:
            yield symbol


def _borrowed(shipped: Elf, full: Elf) -> Iterator[ElfSection]:
    """Allocated sections of the unstripped copy without a header in the shipped file, at the offsets where its segments
    put their addresses."""
    known = {s.name for s in shipped.sections}
    for section in full.sections:
        if not section.allocated or section.name in known:
            continue
        for s in shipped.segments:
            if s.type == LOAD and 0 <= section.address - s.address <= s.memory_size - section.size:
                offset = section.address - s.address + s.offset
                yield ElfSection(
                    section.name,
                    type=section.type,
                    flags=section.flags,
                    address=section.address,
                    offset=offset,
                    size=section.size,
                    link=section.link,
                    entry=section.entry,
                )
                break


def _check_same_link(label: str, shipped: Iterable[ElfSection], unstripped: Iterable[ElfSection]) -> None:
    sizes = {(s.name, s.address): s.size for s in unstripped if s.allocated}
    for s in shipped:
        size = sizes.get((s.name, s.address))
        # Names of sections may go on behind the dynamic strings.
        if s.allocated and s.size != size and not (size is not None and s.type == STRTAB and s.size > size):
            raise BadInput(
                f"{label}: section {s.name} ({s.size} bytes at {s.address:#x}) is not in the "
                "unstripped copy; the two come from different links. Link both from the same objects "
                "with the same flags."
            )
