"""The hash table and the section headers of a finished library, down to what somebody reads.

Loaders read program headers. Linkers, and Android's loader, look for the dynamic symbols, their strings, the
dynamic table and the sections that symbols stand in; the other headers and their names serve debuggers, which
have the twin. Symbols hold the numbers of sections, so headers go from behind the last number that is used.
"""

from __future__ import annotations

import struct

from minbuild.size import elf

_DYNAMIC, _GNU_HASH = 6, 0x6FFFFFF6  # section types
# Where the ELF header says where section headers start, where their size, count and names stand; formats of
# the first and of a section header.
_FORMS = {64: (40, 58, "<Q", "<IIQQQQIIQQ"), 32: (32, 46, "<I", "<IIIIIIIIII")}


def trim_headers(data: bytes) -> bytes:
    """A stripped library with the fewest section headers. What is loaded stays as it is, and so does a whole
    file in which more than section names and headers stands behind what is loaded. Raises BadInput for
    damaged ones."""
    file = elf.parse("library", data)
    start_at, count_at, word, layout = _FORMS[file.bits]
    (start,) = struct.unpack_from(word, data, start_at)
    _, count, names = struct.unpack_from("<HHH", data, count_at)
    headers = list(struct.iter_unpack(layout, data[start : start + count * struct.calcsize(layout)]))
    end = max(s.offset + s.file_size for s in file.segments if s.type == elf.LOAD)
    if any(h[4] + h[5] > end for i, h in enumerate(headers) if h[1] != elf.NOBITS and i != names):
        return data
    last = max(s.section for s in file.symbols(elf.DYNSYM) if s.defined)
    kept = [i for i, h in enumerate(headers) if i <= last or i == names or h[1] in (elf.DYNSYM, _DYNAMIC)]
    kept = sorted({*kept, *(headers[i][6] for i in kept if headers[i][1] in (elf.DYNSYM, _DYNAMIC))})

    titles = ["", *(s.name for s in file.sections)]
    text = b"".join(titles[i].encode() + b"\0" for i in kept)
    rows, title = [], 0
    for i in kept:
        kind, flags, address, offset, size, link, *rest = headers[i][1:]
        if i == names:
            offset, size = end, len(text)
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
    this few symbols, the linker's own choice is twice as long and no faster. What is cut off must end what is
    loaded from the file, else the file stays as it is; behind it, nothing moves. Raises BadInput for damaged
    ones."""
    file = elf.parse("library", data)
    place = next((i for i, s in enumerate(file.sections) if s.type == _GNU_HASH), None)
    if place is None:
        return data
    table = file.sections[place]
    buckets, first, words, shift = struct.unpack_from("<4I", data, table.offset)
    word = file.bits // 8
    chain_at = 16 + word * words + 4 * buckets
    chain = list(struct.unpack_from(f"<{(table.size - chain_at) // 4}I", data, table.offset + chain_at))
    end = table.offset + table.size
    holder = next((i for i, s in enumerate(file.segments) if s.offset + s.file_size == end), None)
    if holder is None or not chain:
        return data
    chain = [value & ~1 for value in chain[:-1]] + [chain[-1] | 1]  # bit 0 ends a bucket
    short = (
        struct.pack("<4I", 1, first, 1, shift)
        + b"\xff" * word
        + struct.pack(f"<{1 + len(chain)}I", first, *chain)
    )

    changed = bytearray(data)
    changed[table.offset : end] = short + bytes(table.size - len(short))
    # Sizes of the section and, in the file, of the segment: where headers start, their size, where it stands in them.
    form, headers_at, header, size_at = ("<Q", 40, 64, 32) if word == 8 else ("<I", 32, 40, 20)
    (start,) = struct.unpack_from(form, data, headers_at)
    struct.pack_into(form, changed, start + (place + 1) * header + size_at, len(short))
    form, headers_at, header, size_at = ("<Q", 32, 56, 32) if word == 8 else ("<I", 28, 32, 16)
    (start,) = struct.unpack_from(form, data, headers_at)
    left = file.segments[holder].file_size - table.size + len(short)
    struct.pack_into(form, changed, start + holder * header + size_at, left)
    return bytes(changed)
