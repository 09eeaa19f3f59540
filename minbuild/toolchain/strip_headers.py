"""The hash table and the section headers of a finished library, down to what somebody reads.

Loaders read program headers. Linkers, and Android's loader, look for the dynamic symbols, their strings, the
dynamic table and the sections that symbols stand in; the other headers and their names serve debuggers, which
have the unstripped copy. Symbols hold the numbers of sections, so headers go from behind the last number that is used.
"""

from __future__ import annotations

import struct

from minbuild.formats import elf

_DYNAMIC, _GNU_HASH = 6, 0x6FFFFFF6  # section types
_STRTAB = 5  # DT_STRTAB
# Where the ELF header says where section headers start, where their size, count and names stand; formats of
# the first and of a section header.
_FORMS = {64: (40, 58, "<Q", "<IIQQQQIIQQ"), 32: (32, 46, "<I", "<IIIIIIIIII")}


def trim_headers(data: bytes) -> bytes:
    """A stripped library with the fewest section headers. Where the dynamic strings end what is loaded, the
    names of sections go on with them, in one table. What is loaded stays as it is, and so does a whole file in
    which more than section names and headers stands behind what is loaded. Raises BadInput for damaged ones."""
    file = elf.parse("library", data)
    start_at, count_at, word, layout = _FORMS[file.bits]
    (start,) = struct.unpack_from(word, data, start_at)
    _, count, names = struct.unpack_from("<HHH", data, count_at)
    headers = list(struct.iter_unpack(layout, data[start : start + count * struct.calcsize(layout)]))
    end = max(s.offset + s.file_size for s in file.segments if s.type == elf.LOAD)
    if any(h[4] + h[5] > end for i, h in enumerate(headers) if h[1] != elf.NOBITS and i != names):
        return data
    before = b""
    strings = next(h[6] for h in headers if h[1] == elf.DYNSYM)
    if headers[strings][4] + headers[strings][5] == end:
        names, before = strings, data[headers[strings][4] : end]
    last = max(s.section for s in file.symbols(elf.DYNSYM) if s.defined)
    kept = [i for i, h in enumerate(headers) if i <= last or i == names or h[1] in (elf.DYNSYM, _DYNAMIC)]
    kept = sorted({*kept, *(headers[i][6] for i in kept if headers[i][1] in (elf.DYNSYM, _DYNAMIC))})

    titles = ["", *(s.name for s in file.sections)]
    text = b"".join(titles[i].encode() + b"\0" for i in kept)
    rows, title = [], len(before)
    for i in kept:
        kind, flags, address, offset, size, link, *rest = headers[i][1:]
        if i == names:
            offset, size = end - len(before), len(before) + len(text)
        link = kept.index(link) if link in kept else 0
        rows.append((title, kind, flags, address, offset, size, link, *rest))
        title += len(titles[i]) + 1
    body = data[:end] + text + bytes(-(end + len(text)) % 8)
    changed = bytearray(body + b"".join(struct.pack(layout, *row) for row in rows))
    struct.pack_into(word, changed, start_at, len(body))
    struct.pack_into("<HH", changed, count_at + 2, len(kept), kept.index(names))
    return bytes(changed)


def shorten_hash(data: bytes) -> bytes:
    """A library whose symbols are found through one bucket and a filter of one word that lets all pass: with
    this few symbols, the linker's own choice is twice as long and no faster. The dynamic strings must stand
    between it and the end of what is loaded from the file, else the file stays as it is; they move up. Raises
    BadInput for damaged ones."""
    file = elf.parse("library", data)
    hashes = next((i for i, s in enumerate(file.sections) if s.type == _GNU_HASH), None)
    tables = next((i for i, s in enumerate(file.sections) if s.type == elf.DYNSYM), None)
    if hashes is None or tables is None:
        return data
    table, strings = file.sections[hashes], file.sections[file.sections[tables].link - 1]
    end = strings.offset + strings.size
    holder = next((i for i, s in enumerate(file.segments) if s.offset + s.file_size == end), None)
    chain = _chain(data, table, file.bits // 8)
    if holder is None or strings.offset != table.offset + table.size or not chain:
        return data
    first, shift = struct.unpack_from("<4I", data, table.offset)[1::2]
    chain = [value & ~1 for value in chain[:-1]] + [chain[-1] | 1]  # bit 0 ends a bucket
    short = (
        struct.pack("<4I", 1, first, 1, shift)
        + b"\xff" * (file.bits // 8)
        + struct.pack(f"<{1 + len(chain)}I", first, *chain)
    )

    changed, cut = bytearray(data), table.size - len(short)
    changed[table.offset : end] = short + data[strings.offset : end] + bytes(cut)
    # Where section headers start, their size, where address and size stand in them; the same of segments.
    word = _FORMS[file.bits][2]
    headers_at, header, address_at, size_at = (40, 64, 16, 32) if file.bits == 64 else (32, 40, 12, 20)
    (start,) = struct.unpack_from(word, data, headers_at)
    struct.pack_into(word, changed, start + (hashes + 1) * header + size_at, len(short))
    for at, value in ((address_at, strings.address), (address_at + file.bits // 8, strings.offset)):
        struct.pack_into(word, changed, start + (file.sections[tables].link) * header + at, value - cut)
    headers_at, header, size_at = (32, 56, 32) if file.bits == 64 else (28, 32, 16)
    (start,) = struct.unpack_from(word, data, headers_at)
    left = file.segments[holder].file_size - cut
    struct.pack_into(word, changed, start + holder * header + size_at, left)
    _move_strings(changed, file, word, strings.address - cut)
    return bytes(changed)


def _chain(data: bytes, table: elf.ElfSection, word: int) -> list[int]:
    """The hashes of all symbols that can be found, in the order of the symbols."""
    buckets, _, words, _ = struct.unpack_from("<4I", data, table.offset)
    at = 16 + word * words + 4 * buckets
    return list(struct.unpack_from(f"<{(table.size - at) // 4}I", data, table.offset + at))


def _move_strings(changed: bytearray, file: elf.Elf, word: str, address: int) -> None:
    """Makes the dynamic table say where the dynamic strings are."""
    dynamic = next(s for s in file.sections if s.type == _DYNAMIC)
    pair = f"<2{word[1:]}"
    for at in range(dynamic.offset, dynamic.offset + dynamic.size, struct.calcsize(pair)):
        tag, _ = struct.unpack_from(pair, changed, at)
        if tag == _STRTAB:
            struct.pack_into(pair, changed, at, tag, address)
